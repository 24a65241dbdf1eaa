"""Standard streams that are closed.

What is not to be imported.
"""

from __future__ import annotations

import os
import sys


def reserve_standard_streams() -> None:
    """Let no file that is opened later get the number of a standard stream that is closed.

    To read from or write to such a stream then fails as before; but messages go nowhere, and that is no error.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the process lives


_NAMES = frozenset({"pandas", "scipy"})


class NotNeeded:
    """Finds no pandas and no SciPy.

    Arrow imports the first when it is first given a Python object, and Numba the second when it first compiles, which
    takes a second each; the command has no use for them. Without them, both
    work all the same. And if memory is short, SciPy's linear algebra waits for it for ever.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """As finders of modules do."""
        if name in _NAMES:
            raise ModuleNotFoundError(f"the command tagmatch does without {name}", name=name)
