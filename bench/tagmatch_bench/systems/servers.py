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
from typing import TYPE_CHECKING, Any, Self

from tagmatch_bench.systems.matcher import UnavailableError, needed

if TYPE_CHECKING:
    import psycopg


class _Server:
    """A program in a temporary folder, which ends with `close`, with this object, and with this process in any way."""

    def _start(self, name: str, script: str, *arguments: str, **options: Any) -> None:
        """Run a shell script that starts a server, prints its folder once it can be reached, and reads a line."""
        process = subprocess.Popen(
            ["sh", "-c", script, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            # Ctrl-C in a terminal is for this process, which may still want its answers
            start_new_session=True,
            **options,
        )
        self._stop = weakref.finalize(self, process.communicate, "\n")
        assert process.stdout is not None
        folder = process.stdout.readline()
        if not folder:
            self._stop.detach()
            _, messages = process.communicate()
            raise RuntimeError(f"{name}'s server does not start: {messages.strip()}")
        self.folder = Path(folder.removesuffix("\n"))

    def close(self) -> None:
        """Stop the server at once and remove its folder."""
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
shared_buffers = 2GB
work_mem = 256MB
maintenance_work_mem = 256MB
max_worker_processes = 64
max_parallel_workers = 64
"""

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


class PostgresServer(_Server):
    """Its own server, reached through a Unix socket in its folder; nothing listens on TCP.

    The server refuses to run as root, so root runs it as `postgres` or else `nobody`.
    """

    def __init__(self) -> None:
        with needed("psycopg"):
            import psycopg
        self._connect = psycopg.connect
        environment = {**os.environ, "PATH": f"{_programs()}{os.pathsep}{os.defpath}"}
        self._start("PostgreSQL", _POSTGRES_SCRIPT, _SUPERUSER, _SETTINGS, env=environment, **_unprivileged())

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection that commits each statement."""
        return self._connect(host=str(self.folder), port=_PORT, user=_SUPERUSER, dbname="postgres", autocommit=True)


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


#: `$1` is a command line, `$2` the text of a file `conf`; DATA is the folder in both. `$3` is the name of
#: a socket there to wait for, if any
_SCRIPT = """
set -e
data=$(mktemp -d -t tagmatch-server.XXXXXX)
command=$(printf '%s' "$1" | sed "s|DATA|$data|g")
printf '%s\\n' "$2" | sed "s|DATA|$data|g" >"$data/conf"
$command >"$data/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || :; wait "$server" 2>/dev/null || :; rm -rf "$data"' EXIT
until [ -z "$3" ] || [ -S "$data/$3" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$data/log" >&2; exit 1; }
    sleep 0.02
done
echo "$data"
read -r _
"""

#: Nothing is kept on disk, and nothing listens on TCP
_REDIS = """port 0
unixsocket DATA/socket
dir DATA
save ""
appendonly no
daemonize no"""

#: Command lines, in which PORT is the port; by name of the program, which is that of its Debian package
_COMMANDS = {
    "nats-server": "-a 127.0.0.1 -p PORT",
    "mosquitto": "-c DATA/conf",
    "redis-server": "--bind 127.0.0.1 --port PORT --dir DATA --appendonly no --daemonize no",
}
_MOSQUITTO = "listener PORT 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0"
_START_S = 20.0


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
    if found is None:
        raise UnavailableError(f"needs the program {name} (Debian package {name})")
    return found


class RedisServer(_Server):
    """Its own server, reached through a Unix socket in its folder."""

    def __init__(self) -> None:
        with needed("redis"):
            import redis
        self._client = redis.Redis
        self._start("Redis", _SCRIPT, f"{_program('redis-server')} DATA/conf", _REDIS, "socket")

    def connect(self) -> Any:
        """Open a connection."""
        return self._client(unix_socket_path=str(self.folder / "socket"))


class MessageServer(_Server):
    """A server that carries messages, on a free port of this machine, with nothing kept on disk."""

    def __init__(self, program: str) -> None:
        found = _program(program)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port: int = listener.getsockname()[1]
        command, conf = (text.replace("PORT", str(self.port)) for text in (_COMMANDS[program], _MOSQUITTO))
        self._start(program, _SCRIPT, f"{found} {command}", conf, "")
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
