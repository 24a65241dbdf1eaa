"""Pages for those who come from another system: the code of that system runs, too, if its program is installed here."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.brokers import mosquitto
from support.documents import NEEDS_JAVA, ROOT, Block, blocks_in, run
from support.servers import needs, needs_java

from tagmatch_bench.systems.servers import PostgresServer, RedisServer

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def compared(page: str, reason: str, *replaced: str) -> int:
    """Run a page with the blocks that need its system, in the current folder; a word may be replaced by another."""
    blocks = [each for each in blocks_in(ROOT / f"docs/howto/from_{page}.md") if each.reason in (None, reason)]
    assert any(each.reason == reason for each in blocks)
    assert not replaced or any(replaced[0] in each.code for each in blocks)
    return run([_with(each, *replaced) for each in blocks])


def _with(block: Block, *replaced: str) -> Block:
    return replace(block, code=block.code.replace(*replaced)) if replaced else block


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("psql", "postgresql-client")
    needs("/usr/lib/postgresql/*/bin/initdb", "postgresql", called="initdb")
    with contextlib.closing(PostgresServer()) as server, server.connect() as connection:
        facts = connection.info
        for name, value in {"HOST": facts.host, "PORT": facts.port, "USER": facts.user, "DATABASE": "postgres"}.items():
            monkeypatch.setenv(f"PG{name}", str(value))
        assert compared("postgresql", "needs PostgreSQL") >= 3


def test_redis() -> None:
    needs("redis-server", "redis-server")
    with contextlib.closing(RedisServer()) as server:
        socket = f"redis.Redis(unix_socket_path={str(server.folder / 'socket')!r}, "
        assert compared("redis", "needs Redis", "redis.Redis(", socket) >= 6


def test_clickhouse() -> None:
    pytest.importorskip("chdb")
    assert compared("duckdb_and_clickhouse", "needs ClickHouse") >= 6


@pytest.fixture
def broker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker whose port the commands find in their settings."""
    needs("mosquitto_pub", "mosquitto-clients")
    with mosquitto(folder) as server:
        for name in ("mosquitto_pub", "mosquitto_sub"):
            (folder / name).write_text(f"--port {server.port}\n")
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
        yield


@pytest.mark.usefixtures("broker")
def test_mqtt() -> None:
    assert compared("mqtt", "needs a broker") >= 5


def test_json_rules_engine() -> None:
    """The package is installed from where `npm` is configured to find it."""
    needs("node", "nodejs")
    command = [needs("npm", "npm"), "install", "--ignore-scripts", "--no-audit", "json-rules-engine"]
    if (done := subprocess.run(command, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"json-rules-engine cannot be installed: {done.stderr}")
    assert compared("rules", "needs Node") >= 4


def test_spark_sql() -> None:
    needs_java()
    command = [sys.executable, str(ROOT / "tests/support/documents.py"), "docs/howto/from_spark_sql.md", NEEDS_JAVA]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "2 outputs are as shown" in ran.stdout, ran.stderr
