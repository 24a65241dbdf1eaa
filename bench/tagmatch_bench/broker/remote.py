"""The remote client as its parent sees it: a process that sends events to this machine, again and again."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from tagmatch_bench.broker.client import Received, Sent, outcome, write_events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tagmatch_bench.broker.wire import Events

# Until the client, a process that has to load kernels, connects
_CONNECTS_S = 60.0


class Client:
    """A client in a process of its own, from `with` to its end.

    Parameters
    ----------
    events : Events
        They repeat in turn.
    names : sequence of str
        Of the attributes, as the events number them.
    """

    def __init__(self, events: Events, names: Sequence[str]) -> None:
        self.events, self.names = events, list(names)

    def __enter__(self) -> Client:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self._listener.settimeout(_CONNECTS_S)
            write_events(self._folder, self.events, self.names)
            host, port = self._listener.getsockname()
            command = [sys.executable, "-m", "tagmatch_bench.broker.client", host, str(port), str(self._folder)]
            self._process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(self._process.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def begin(self, rate: float, seconds: float) -> socket.socket:
        """Have the client connect and send events at a rate; returns the connection from which they come."""
        to_client = cast("IO[str]", self._process.stdin)
        to_client.write(f"{rate!r} {seconds!r}\n")
        to_client.flush()
        connection, _ = self._listener.accept()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def end(self) -> tuple[Sent, Received]:
        """Wait until the client has sent and received all; the connection must be closed.

        Raises
        ------
        RuntimeError
            The client has failed; it has written why to the standard error stream.
        """
        if not cast("IO[str]", self._process.stdout).readline():
            raise RuntimeError(f"the client has ended with status {self._process.wait()} before it had received all")
        return outcome(self._folder)
