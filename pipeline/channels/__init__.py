"""Queries of channels, whose deadlines are kept: what waits, in which order it goes, and the threads that match it."""
