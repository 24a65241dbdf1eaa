"""Benchmarks of tagmatch on Spark."""
