"""Generators of the workloads that matchers of constraints and areas were measured with in papers."""
