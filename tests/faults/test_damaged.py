"""Files and messages that are damaged, or that a stranger has made."""

from faults.driver import nothing_goes_wrong as test_nothing_goes_wrong  # noqa: F401 - of each of these

PROGRAMS = ("damage", "crafted", "fuzz_ipc", "fuzz_files")
