"""The service: what other programs reach an index through, and the subscribers that it notifies."""
