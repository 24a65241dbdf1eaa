"""Servers that carry messages, each on a free port of this machine for the life of one object."""

from __future__ import annotations

import os
import shutil
import socket
import time

from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.supervised import start_server

#: As `start_server` wants it: `$1` is a command line in which DATA stands for the folder
_SUPERVISOR = """
set -e
data=$(mktemp -d -t tagmatch-messages.XXXXXX)
command=$(printf '%s' "$1" | sed "s|DATA|$data|g")
printf 'listener %s 127.0.0.1\\nallow_anonymous true\\nmax_queued_messages 0\\n' "$2" >"$data/mosquitto.conf"
$command >"$data/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || :; wait "$server" 2>/dev/null || :; rm -rf "$data"' EXIT
echo "$data"
read -r _
"""

#: Command lines, in which PORT stands for the port; by name of the program, which is that of its Debian package
_COMMANDS = {
    "nats-server": "-a 127.0.0.1 -p PORT",
    "mosquitto": "-c DATA/mosquitto.conf",
    "redis-server": "--bind 127.0.0.1 --port PORT --dir DATA --appendonly no --daemonize no",
}
_START_S = 20.0


class MessageServer:
    """A server, with nothing kept on disk. It ends with `close`, with this object, and with this process.

    Parameters
    ----------
    program : {"nats-server", "mosquitto", "redis-server"}

    Attributes
    ----------
    port : int

    Raises
    ------
    UnavailableError
        The program is missing.
    RuntimeError
        The server does not start.
    """

    def __init__(self, program: str) -> None:
        found = shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
        if found is None:
            raise UnavailableError(f"needs the program {program} (Debian package {program})")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port: int = listener.getsockname()[1]
        command = f"{found} {_COMMANDS[program].replace('PORT', str(self.port))}"
        _, self._stop = start_server(self, program, _SUPERVISOR, command, str(self.port), environment=os.environ)
        end = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > end:
                    self._stop()
                    raise RuntimeError(f"{program} does not listen on port {self.port}") from None
                time.sleep(0.02)

    def close(self) -> None:
        """Stop the server at once."""
        self._stop()
