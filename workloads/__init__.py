"""Workloads: generators of sets and queries, baseline matchers, benchmarks."""
