"""Numba kernels of the data model: hashing, signatures, tag look-up, rows of ranks."""
