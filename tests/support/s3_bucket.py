"""Fixtures: a bucket in a private S3 on this machine. Use: `pytest_plugins = ["support.s3_bucket"]`."""

from collections.abc import Iterator
from typing import Any

import pyarrow.fs
import pytest
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def port() -> Iterator[int]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


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
