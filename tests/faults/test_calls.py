"""Calls that find no memory or a full disk, or are interrupted, one by one and in random walks."""

from faults.driver import nothing_goes_wrong as test_nothing_goes_wrong  # noqa: F401 - of each of these

PROGRAMS = ("sweep", "machine")
