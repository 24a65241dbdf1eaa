"""Matching on CUDA. Importing its modules imports `numba.cuda`; nothing else in the package does."""
