"""A Redis server for the life of one object."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.packages import needed
from tagmatch_bench.systems.supervised import start_server

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = "redis-server"

#: As `start_server` wants it. Nothing is kept on disk, and nothing listens on TCP.
_SUPERVISOR = """
set -e
data=$(mktemp -d -t tagmatch-redis.XXXXXX)
"$1" --port 0 --unixsocket "$data/socket" --dir "$data" --save "" --appendonly no --daemonize no >"$data/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || :; wait "$server" 2>/dev/null || :; rm -rf "$data"' EXIT
until [ -S "$data/socket" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$data/log" >&2; exit 1; }
    sleep 0.02
done
echo "$data"
read -r _
"""


class RedisServer:
    """A server of its own, in a temporary folder and reached through a Unix socket in it.

    Ends with `close`, with this object, and with this process, however that ends.

    Attributes
    ----------
    folder : pathlib.Path

    Raises
    ------
    UnavailableError
        The program or the Python package is missing.
    RuntimeError
        The server does not start; its own messages follow.
    """

    folder: Path

    def __init__(self) -> None:
        with needed("redis"):
            import redis
        self._client = redis.Redis
        program = shutil.which(_PROGRAM)
        if program is None:
            raise UnavailableError(f"needs the program {_PROGRAM} (Debian package {_PROGRAM})")
        self.folder, self._stop = start_server(self, "Redis", _SUPERVISOR, program, environment=os.environ)

    def connect(self) -> Any:
        """Open a connection."""
        return self._client(unix_socket_path=str(self.folder / "socket"))

    def close(self) -> None:
        """Stop the server at once and remove its folder."""
        self._stop()

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
