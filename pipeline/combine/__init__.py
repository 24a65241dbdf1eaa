"""Matchers made of matchers: replicas that take turns, parts of the sets, a device and the CPU (§3.3)."""
