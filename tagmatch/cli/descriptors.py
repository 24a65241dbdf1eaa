"""Standard streams that are closed."""

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
