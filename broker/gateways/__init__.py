"""Gateways: messages come in from another broker, and notifications go out to it."""
