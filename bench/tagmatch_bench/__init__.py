"""Benchmarks; each is a command of `tagmatch-bench`."""
