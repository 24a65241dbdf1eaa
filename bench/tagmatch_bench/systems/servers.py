"""Servers that end with the object, and with the process, that has started them."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagmatch_bench.systems.matcher import UnavailableError, needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import psycopg


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


#: Debian keeps the server's programs out of the path
_DEBIAN_FOLDERS = "/usr/lib/postgresql/*/bin"

_SUPERUSER = "postgres"
#: Part of the socket's name; said to both sides, or else PGPORT is heeded
_PORT = 5432

#: What is stored is thrown away with the server, so nothing needs to survive a crash. A relative socket folder lies
#: in the data folder, which only the server's user may enter. The buffers take memory once they are used.
_SETTINGS = f"""
port = {_PORT}
listen_addresses = ''
unix_socket_directories = '.'
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
jit = off
shared_buffers = 1GB
maintenance_work_mem = 256MB
max_worker_processes = 64
max_parallel_workers = 64
"""

#: As `start_server` wants it
_POSTGRES_SCRIPT = """
set -e
data=$(mktemp -d -t tagmatch-postgres.XXXXXX)
trap 'pg_ctl stop -D "$data" -m immediate >/dev/null 2>&1 || :; rm -rf "$data"' EXIT
initdb -D "$data" --username="$1" --auth=trust --encoding=UTF8 --locale=C --no-sync >/dev/null
printf '%s' "$2" >>"$data/postgresql.conf"
pg_ctl start -D "$data" -l "$data/log" >/dev/null || { cat "$data/log" >&2; exit 1; }
echo "$data"
read -r _
"""


class PostgresServer:
    """A server of its own, in a temporary folder and reached through a Unix socket in it; nothing listens on TCP.

    Ends with `close`, with this object, and with this process, however that ends. The server refuses to run as
    root, so root runs it as `postgres` or else `nobody`.

    Attributes
    ----------
    folder : pathlib.Path
        Its data folder.

    Raises
    ------
    UnavailableError
        A program or the Python package is missing.
    RuntimeError
        The server does not start; its own messages follow.
    """

    def __init__(self) -> None:
        with needed("psycopg"):
            import psycopg
        self._connect = psycopg.connect
        self.folder, self._stop = start_server(
            self,
            "PostgreSQL",
            _POSTGRES_SCRIPT,
            _SUPERUSER,
            _SETTINGS,
            environment={**os.environ, "PATH": f"{_programs()}{os.pathsep}{os.defpath}"},
            **_unprivileged(),
        )

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection that commits each statement."""
        return self._connect(host=str(self.folder), port=_PORT, user=_SUPERUSER, dbname="postgres", autocommit=True)

    def close(self) -> None:
        """Stop the server at once and remove its folder."""
        self._stop()

    def __enter__(self) -> PostgresServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _programs() -> Path:
    """Find the folder of `initdb` and `pg_ctl`, of the greatest version."""
    versions = sorted(Path("/").glob(_DEBIAN_FOLDERS[1:]), key=lambda folder: (len(folder.parts[-2]), folder))
    path = os.pathsep.join([*map(str, reversed(versions)), os.environ.get("PATH", os.defpath)])
    found = shutil.which("pg_ctl", path=path)
    if found is None or shutil.which("initdb", path=path) is None:
        raise UnavailableError("needs PostgreSQL's server programs, initdb and pg_ctl (Debian package postgresql)")
    return Path(found).resolve().parent


def _unprivileged() -> dict[str, Any]:
    """Return arguments of `Popen` that give up being root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise UnavailableError("needs a user postgres or nobody to run PostgreSQL's server, which refuses to run as root")


_PROGRAM = "redis-server"

#: As `start_server` wants it. Nothing is kept on disk, and nothing listens on TCP.
_REDIS_SCRIPT = """
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
        self.folder, self._stop = start_server(self, "Redis", _REDIS_SCRIPT, program, environment=os.environ)

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


#: As `start_server` wants it: `$1` is a command line in which DATA stands for the folder
_MESSAGES_SCRIPT = """
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
        _, self._stop = start_server(self, program, _MESSAGES_SCRIPT, command, str(self.port), environment=os.environ)
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
