"""What a person at the terminal sees."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from support.command import COMMAND, as_json_lines, from_json_lines, write
from support.kernel_cache import copy_of_cache

from tagmatch import TagMatch
from tagmatch.cli.progress import steps

pytestmark = pytest.mark.slow

ROWS = 5_000


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("progress") / "index"
    with TagMatch(path) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    write(path.with_name("queries.parquet"), [{"tags": ["a"]}] * ROWS)
    return path


def on_a_terminal(*arguments: object, stdout: int | None = None, environment: dict[str, str] | None = None) -> str:
    """What the command shows on a terminal, which also gets its output unless that goes elsewhere."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=end if stdout is None else stdout,
        stderr=end,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "200"} | (environment or {}),
    )
    os.close(end)
    shown = []
    try:
        while more := os.read(terminal, 1 << 16):
            shown.append(more)
    except OSError:
        pass  # so Linux tells the end
    os.close(terminal)
    assert process.wait(120) == 0, b"".join(shown)
    return b"".join(shown).decode()


def test_a_bar_where_answers_go_elsewhere(index, tmp_path):
    queries = index.with_name("queries.parquet")
    for arguments in (["-o", tmp_path / "answers.jsonl"], []):
        with (tmp_path / "stdout").open("wb") as stdout:
            shown = on_a_terminal("match", index, queries, *arguments, stdout=stdout.fileno())
        assert "matching" in shown
        assert f"{ROWS}/{ROWS}" in shown
        assert re.search(r"[\d,]+/s", shown)
        assert "left:" in shown
        file = tmp_path / ("answers.jsonl" if arguments else "stdout")
        assert [answer["id"] for answer in from_json_lines(file.read_text())] == list(range(ROWS))


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_no_bar_among_the_answers(index, output):
    shown = on_a_terminal("match", index, index.with_name("queries.parquet"), "-o", output)
    assert [answer["id"] for answer in from_json_lines(shown.replace("\r\n", "\n"))] == list(range(ROWS))


def test_a_bar_of_an_export(index, tmp_path):
    assert "exporting" in on_a_terminal("export", index, tmp_path / "sets.csv")
    shown = on_a_terminal("export", index)
    assert from_json_lines(shown) == [{"tags": ["a"], "key": 1}]


@pytest.mark.parametrize(("seconds_a_row", "largest"), [(1e-3, 1_000), (1e-4, 1_000), (1e-6, 100_000)])
def test_steps(seconds_a_row, largest):
    """Of 1,000 rows, unless many more are done in no time."""
    batch = pa.record_batch([pa.nulls(70_000)], names=["a"])
    sizes: list[int] = []
    for step in steps(batch, lambda: sum(sizes) * seconds_a_row):
        sizes.append(len(step))  # noqa: PERF401 - the clock looks at what there is
    assert sum(sizes) == len(batch)
    assert sizes[0] == 1_000
    assert max(sizes) <= largest


def test_compiling_is_said(index, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_bytes(as_json_lines([{"tags": ["a"]}]))
    said = "compiling kernels, once, about 30 s"
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for kernel in copy_of_cache(tmp_path).glob("rarest._verify-*"):
        kernel.unlink()
    first, second = (on_a_terminal("match", index, queries, environment=environment) for _ in range(2))
    assert first.count(said) == 1
    assert said not in second
