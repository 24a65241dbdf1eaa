"""The command `tagmatch-workload`, in this process."""

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from unittest.mock import patch

from tagmatch.workloads.commands import main

#: The same in a separate process
COMMAND = [sys.executable, "-c", "from tagmatch.workloads.commands import main; main()"]


def run(*arguments: object, code: int = 0, entry: Callable[[], None] = main) -> str:
    stderr = io.StringIO()
    with patch("sys.argv", ["tagmatch-workload", *map(str, arguments)]), redirect_stderr(stderr):
        try:
            entry()
            found = 0
        except SystemExit as end:
            found = end.code
    assert found == code, stderr.getvalue()
    return stderr.getvalue()


def refused(*arguments: object) -> str:
    (line,) = run(*arguments, code=1).splitlines()
    return line
