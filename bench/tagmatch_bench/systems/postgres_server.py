"""A PostgreSQL server for the life of one object."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagmatch_bench.systems.matcher import UnavailableError
from tagmatch_bench.systems.packages import needed
from tagmatch_bench.systems.supervised import start_server

if TYPE_CHECKING:
    import psycopg

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
_SUPERVISOR = """
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
            _SUPERVISOR,
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
