"""The service: an index over Arrow Flight, MQTT and NATS, with users, rights and limits, subscribers, and a client."""
