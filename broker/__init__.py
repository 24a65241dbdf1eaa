"""The service: an index over Arrow Flight, with users and their rights, limits, metrics, and a client."""
