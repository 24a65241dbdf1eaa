"""Rules that are compiled for the CPU and for CUDA alike, so that both answer by the same code."""
