"""The service: an index over Arrow Flight and HTTP, gateways, users, rights and limits, subscribers, and a client."""
