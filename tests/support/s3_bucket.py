"""Fixtures: a bucket in a private S3 on this machine. Use: `pytest_plugins = ["support.s3_bucket"]`."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow.fs
import pytest
from moto.server import ThreadedMotoServer


class Asked:
    """The requests to a store, and the faults that it gives in place of answers."""

    def __init__(self, store: Callable[..., Iterable[bytes]]) -> None:
        self._store = store
        self.forget()

    def forget(self) -> None:
        """Let it answer again, with an empty log of requests."""
        self.log: list[tuple[str, str]] = []  # methods and paths below the bucket
        #: May wait, and gives a status in place of the answer, or how many bytes of the body are sent before it ends
        self.failed = 0
        self.fault: Callable[[str, str], str | int | None] = lambda *_: None

    def fail_now_and_then(self, draw: random.Random, share: float) -> None:
        """Of requests this share is answered late, by 503, or with a body that is cut short."""

        def fault(method: str, _: str) -> str | int | None:
            kind = draw.random() / share
            if kind < 0.3:
                time.sleep(0.2 * draw.random())
            elif kind < 0.7:
                return "503 Slow Down"
            elif kind < 1 and method == "GET":
                return draw.randrange(100)
            return None

        self.fault = fault

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].lstrip("/").partition("/")[2]
        self.log.append((method, path))
        fault = self.fault(method, path)
        self.failed += fault is not None
        if isinstance(fault, str):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(fault, [("Content-Length", "0")])
            return [b""]
        answer = b"".join(self._store(environ, start))
        return [answer if fault is None else answer[:fault]]


@pytest.fixture(scope="session")
def server() -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    server.get_host_and_port()
    server._server.app = Asked(server._server.app)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def port(server: ThreadedMotoServer) -> int:
    found: int = server.get_host_and_port()[1]
    return found


@pytest.fixture
def asked(server: ThreadedMotoServer) -> Iterator[Asked]:
    """What the store was asked since the test began; it may be told to fail."""
    found: Asked = server._server.app
    found.forget()
    yield found
    found.forget()


@pytest.fixture
def bucket(port: int, request: pytest.FixtureRequest) -> Any:
    files = pyarrow.fs.S3FileSystem(
        access_key="someone",
        secret_key="secret",
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    name = f"bucket{abs(hash(request.node.nodeid))}"
    files.create_dir(name)
    return pyarrow.fs.SubTreeFileSystem(name, files), name


@pytest.fixture
def uri(port: int, bucket: Any) -> str:
    """Of an index in the bucket, with a password."""
    options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    return f"s3a://someone:secret@{bucket[1]}/folder/index?{options}"
