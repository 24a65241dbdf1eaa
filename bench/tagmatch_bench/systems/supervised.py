"""Servers that end with the object, and with the process, that has started them."""

from __future__ import annotations

import subprocess
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def start_server(
    owner: object, name: str, script: str, *arguments: str, environment: Mapping[str, str], **options: Any
) -> tuple[Path, Callable[[], object]]:
    """Run a shell script that starts a server, prints its folder once it can be reached, and reads a line.

    The script is to stop the server when that line is there, or its input ends, as it does when this process dies in
    whatever way. That line comes when `owner` is no more, or when what is returned is called.

    Parameters
    ----------
    owner
    name : str
        What to call the server in an error.
    script : str
    arguments : str
        `$1` and so on in the script.
    environment : mapping
    options
        Further arguments of `Popen`.

    Returns
    -------
    pathlib.Path
        The folder.
    callable
        Stops the server.

    Raises
    ------
    RuntimeError
        The server does not start; its own messages follow.
    """
    process = subprocess.Popen(
        ["sh", "-c", script, "sh", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env=dict(environment),
        # Ctrl-C in a terminal is for this process, which may still want its answers
        start_new_session=True,
        **options,
    )
    stop = weakref.finalize(owner, process.communicate, "\n")
    assert process.stdout is not None
    folder = process.stdout.readline()
    if not folder:
        stop.detach()
        _, messages = process.communicate()
        raise RuntimeError(f"{name}'s server does not start: {messages.strip()}")
    return Path(folder.removesuffix("\n")), stop
