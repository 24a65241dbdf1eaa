"""Matching on the CPU: every stage as kernels without the interpreter lock."""
