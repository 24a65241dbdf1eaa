"""The ground: the data model, its kernels and its storage. Imports nothing of the folders above it."""

VERSION = "0.1.0"
