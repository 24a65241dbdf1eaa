"""Workloads: generators of subscriptions and messages."""
