"""Commands, services and gateways to which all kinds of things happen."""

from faults.driver import nothing_goes_wrong as test_nothing_goes_wrong  # noqa: F401 - of each of these

PROGRAMS = ("commands", "fuzz_flight", "fuzz_gateways", "gateways")
