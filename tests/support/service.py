"""Services for tests, on a free port of this machine; and the command that serves, as a process."""

import contextlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from support.command import started

from tagmatch import TagMatch, connect
from tagmatch.broker.client import RemoteTagMatch
from tagmatch.broker.config import Config, HttpOptions, MetricsOptions, ServerOptions, User
from tagmatch.broker.config_file import token_sha256
from tagmatch.broker.service import Service, serving

USERS = tuple(User(f"user-{role}", token_sha256(f"token-{role}"), role) for role in ("read", "write", "admin"))
NO_METRICS = MetricsOptions(enabled=False)


def config(users: tuple[User, ...] = (), *, origins: list[str] | None = None, **server: Any) -> Config:
    http = HttpOptions(origins=origins)
    return Config(ServerOptions(port=0, **server), http=http, metrics=NO_METRICS, users=users)


@contextlib.contextmanager
def remote(index: TagMatch[Any] | None = None, **server: Any) -> Iterator[tuple[TagMatch[Any], RemoteTagMatch[Any]]]:
    """An index, and the same over a connection."""
    index = TagMatch(threads=2, device="cpu") if index is None else index
    with index, serving(index, config(**server)) as service, connect(service.url) as tm:
        yield index, tm


def value(service: Service, name: str, **labels: str) -> float:
    return service.metrics.registry.get_sample_value(name, labels) or 0.0


def options(token: str | None = None, **more: Any) -> flight.FlightCallOptions:
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    return flight.FlightCallOptions(headers=headers, timeout=60, **more)


def command(**options: Any) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(options))


def messages(rows: list[list[str]], **columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"tags": pa.array(rows, pa.list_(pa.string())), **columns})


def exchanged(client: flight.FlightClient, asked: Any, rows: Any, given: Any = None) -> pa.Table:
    """The answers to rows, which are a table or a batch; `asked` is a descriptor, `given` are options of the call."""
    writer, reader = client.do_exchange(asked, given or options())
    with writer:
        writer.begin(rows.schema)
        writer.write(rows)
        writer.done_writing()
        return reader.read_all()


def put(client: flight.FlightClient, asked: Any, *rows: Any, given: Any = None) -> Any:
    writer, answers = client.do_put(asked, rows[0].schema, given or options())
    with writer:
        for some in rows:
            writer.write(some)
        writer.done_writing()
        return answers.read()


class Slowed:
    """Has an index match many messages only once it is let; `calls` has how many each call had."""

    def __init__(self, index: TagMatch[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.let, self.began, self.calls = threading.Event(), threading.Event(), list[int]()
        match_many = index.match_many

        def slow(queries: Any, **more: Any) -> Any:
            self.began.set()
            assert self.let.wait(60)
            self.calls.append(len(queries))
            return match_many(queries, **more)

        monkeypatch.setattr(index, "match_many", slow)


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


class Served:
    """`tagmatch serve` as a process; `options` are those of `Popen`."""

    def __init__(self, *arguments: object, **options: Any) -> None:
        self.process = started("serve", *arguments, stdout=subprocess.PIPE, **options)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("tagmatch: listening on "), (line, self.process.communicate(timeout=300))
        self.url = line.split()[3].rstrip(",")
        self.metrics = line.split()[-1].removesuffix("/metrics") if "metrics on" in line else None

    def end(self) -> tuple[int, str]:
        """Its exit code and what it has logged, when it has ended."""
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors.decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=300)


def written(folder: Path, text: str) -> Path:
    path = folder / "service.toml"
    path.write_text(text)
    return path


def posted(url: str, body: Any, kind: str = "application/json", method: str = "POST") -> Any:
    """The answer; an error of the service is raised."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found = answer.read()
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["detail"]) from None
    return json.loads(found) if kind == "application/json" else found
