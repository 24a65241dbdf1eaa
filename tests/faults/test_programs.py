"""Programs that are killed, lose power, or write and read at once."""

from faults.driver import nothing_goes_wrong as test_nothing_goes_wrong  # noqa: F401 - of each of these

PROGRAMS = ("kills", "at_once", "power_loss")
