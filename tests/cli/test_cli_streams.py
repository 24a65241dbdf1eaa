"""Streams: every answer is written or an error comes, queries are answered as they arrive, and terminals see a bar."""

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.agreement import index_of
from support.command import COMMAND, as_json_lines, closing, done, ended, from_json_lines, started, write
from support.kernel_cache import copy_of_cache

from tagmatch.cli.shared import in_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Each query with `a` has key 1, each with `many` 200 others."""
    path = tmp_path_factory.mktemp("streams") / "index"
    keys = range(1_000_000, 1_000_200)
    index_of([["a"], *[["many"]] * len(keys)], [1, *keys], path).close()
    return path


@pytest.fixture(scope="module")
def large(index):
    """3,000 queries, whose answers have 4.8 MB."""
    path = index.with_name("queries.jsonl")
    path.write_bytes(as_json_lines([{"tags": ["many"]}] * 3_000))
    return path


@pytest.fixture(scope="module")
def large_index(tmp_path_factory):
    """Small on the disk, but not as rows: a set with a tag of 1 MB and 600 keys."""
    path = tmp_path_factory.mktemp("large") / "index"
    with index_of([["x" * 1_000_000]], [0], path) as tm:
        for first in range(1, 600, 50):
            tm.add_sets([["x" * 1_000_000]] * 50, range(first, first + 50))
        tm.consolidate()
    return path


@pytest.fixture(scope="module")
def expected(index, large):
    return done("match", index, large).encode()


UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
BUFFERING = pytest.mark.parametrize("environment", [{}, pytest.param(UNBUFFERED, marks=pytest.mark.nightly)], ids=str)


@pytest.mark.parametrize("environment", [{}, UNBUFFERED], ids=str)
def test_a_pipe_that_does_not_block(index, large, expected, environment):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with started("match", index, large, stdout=writer, environment=environment) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as output:
            assert output.read() == expected
        assert process.stderr.read() == b""
    assert process.returncode == 0


def ending(*arguments: object, **options: Any) -> tuple[int, str]:
    process = started(*arguments, **options)
    _, stderr = process.communicate(timeout=600)
    return process.returncode, stderr.decode()


@BUFFERING
def test_a_full_disk(index, large, environment):
    commands = [["info", index], ["match", index, large], ["export", index, "--format", "parquet"], ["--help"]]
    with Path("/dev/full").open("wb") as full:
        for arguments in commands:
            told = ending(*arguments, stdout=full, environment=environment)
            assert told == (1, "tagmatch: standard output: No space left on device\n"), arguments


@BUFFERING
@pytest.mark.parametrize("command", ["match", "export"])
def test_a_reader_that_has_had_enough(index, large, large_index, environment, command):
    arguments = [command, index, large] if command == "match" else [command, large_index]
    with started(*arguments, stdout=subprocess.PIPE, environment=environment) as process:
        process.stdout.read(1_000)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


CLOSED = [("match INDEX -", 0), ("build - NEW", 0), ("match INDEX LARGE", 1), ("info INDEX", 1), ("--help", 1)]


@pytest.mark.parametrize(("arguments", "closed"), CLOSED)
def test_standard_streams_that_are_closed(index, large, tmp_path, arguments, closed):
    paths = {"INDEX": index, "LARGE": large, "NEW": tmp_path / "new"}
    told = ending(*(paths.get(word, word) for word in arguments.split()), before=closing(closed))
    assert told == (1, f"tagmatch: standard {'output' if closed else 'input: cannot be read'}: it is closed\n")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_streams_that_are_not_needed_may_be_closed(index, large, expected, tmp_path, closed):
    """Nor does a file that is opened get the number of one."""
    output = tmp_path / "answers.jsonl"
    assert started("match", index, large, "-o", output, before=closing(closed), stderr=None).wait(600) == 0
    assert output.read_bytes() == expected
    if closed == 2:
        nowhere = tmp_path / "nowhere.jsonl"
        process = started("match", index, nowhere, before=closing(2), stdout=subprocess.PIPE, stderr=None)
        assert (process.communicate(timeout=600), process.returncode) == ((b"", None), 1)


# A process has at least the peak of the one that started it, so that one must be small
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


@pytest.mark.parametrize(
    "name", ["jsonl", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("csv.gz", "parquet"))]
)
def test_memory_is_bounded(large_index, name):
    """It is less than half of the written bytes."""
    command = [sys.executable, "-c", PEAK, COMMAND, "export", large_index, "--format", name]
    peak = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(peak.stdout) < 400_000_000


@pytest.mark.parametrize("blocking", [True, False])
def test_queries_are_answered_as_they_come(index, blocking):
    reader, writer = os.pipe()
    os.set_blocking(reader, blocking)
    options = {"stdin": reader, "stdout": subprocess.PIPE}
    with started("match", index, "-", **options) as process, os.fdopen(writer, "wb", 0) as pipe:
        os.close(reader)
        pipe.write(b'{"tags": ["a"]}\n{"tags": ["a"], "id"')
        assert process.stdout.readline() == b'{"id":0,"keys":[1]}\n'
        pipe.write(b': 7}\n\n{"tags": []}\n{"ta')
        assert process.stdout.readline() == b'{"id":7,"keys":[1]}\n'
        assert process.stdout.readline() == b'{"id":2,"keys":[]}\n'
        pipe.write(b'gs": ["b", "a"]}')
        pipe.close()
        assert process.stdout.read() == b'{"id":3,"keys":[1]}\n'
        assert process.stderr.read() == b""
    assert process.returncode == 0


GOOD, BAD = {"tags": ["a"]}, {"tags": [None]}


def test_good_lines_are_answered_before_the_error(index):
    stdin = as_json_lines([GOOD] * 5 + [BAD] + [GOOD])
    done = ended("match", index, "-", stdin=stdin)
    assert done.returncode == 1
    assert from_json_lines(done.stdout) == [{"id": row, "keys": [1]} for row in range(5)]
    assert "standard input: line 6: column 'tags': row 5" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_skip_invalid(index, tmp_path, suffix):
    queries = write(tmp_path / f"queries{suffix}", [GOOD, BAD, GOOD, {"tags": None}, BAD, GOOD])
    done = ended("match", index, queries, "--skip-invalid")
    assert done.returncode == 0
    assert from_json_lines(done.stdout) == [{"id": row, "keys": [1]} for row in (0, 2, 5)]
    assert re.fullmatch(f"tagmatch: skipped 3 invalid rows; the first: .*{queries}.*row 1.*\n", done.stderr)


ROWS = 5_000


@pytest.fixture(scope="module")
def many(index):
    return write(index.with_name("queries.parquet"), [{"tags": ["a"]}] * ROWS)


def on_a_terminal(*arguments: object, stdout: int | None = None, environment: dict[str, str] | None = None) -> str:
    """What the command shows on a terminal, which also gets its output unless that goes elsewhere."""
    terminal, end = pty.openpty()
    variables = os.environ | {"TERM": "xterm", "COLUMNS": "200"} | (environment or {})
    streams = {"stdin": subprocess.DEVNULL, "stdout": end if stdout is None else stdout, "stderr": end}
    process, shown = subprocess.Popen([COMMAND, *map(str, arguments)], env=variables, **streams), []
    os.close(end)
    with contextlib.suppress(OSError):  # so Linux tells the end
        while more := os.read(terminal, 1 << 16):
            shown.append(more)
    os.close(terminal)
    assert process.wait(600) == 0, b"".join(shown)
    return b"".join(shown).decode()


def test_a_bar_where_answers_go_elsewhere(index, many, tmp_path):
    for file, arguments in (("answers.jsonl", ["-o", tmp_path / "answers.jsonl"]), ("stdout", [])):
        with (tmp_path / "stdout").open("wb") as stdout:
            shown = on_a_terminal("match", index, many, *arguments, stdout=stdout.fileno())
        assert [part for part in ("matching", f"{ROWS}/{ROWS}", "left:") if part not in shown] == []
        assert re.search(r"[\d,]+/s", shown)
        assert [row["id"] for row in from_json_lines((tmp_path / file).read_text())] == list(range(ROWS))


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_no_bar_among_the_answers(index, many, output):
    shown = on_a_terminal("match", index, many, "-o", output)
    assert [answer["id"] for answer in from_json_lines(shown.replace("\r\n", "\n"))] == list(range(ROWS))


@pytest.mark.nightly  # an export that takes long enough for a bar
def test_a_bar_of_an_export(large_index, tmp_path):
    assert "exporting" in on_a_terminal("export", large_index, tmp_path / "sets.csv")
    assert "exporting" not in on_a_terminal("export", large_index)


@pytest.mark.parametrize(("seconds_a_row", "largest"), [(1e-3, 1_000), (1e-4, 1_000), (1e-6, 100_000)])
def test_steps(seconds_a_row, largest):
    """Of 1,000 rows, unless many more are done in no time."""
    batch = pa.record_batch([pa.nulls(70_000)], names=["a"])
    sizes: list[int] = []
    for step in in_steps(batch, lambda: sum(sizes) * seconds_a_row):
        sizes.append(len(step))  # noqa: PERF401 - the clock looks at what there is
    assert sum(sizes) == len(batch)
    assert sizes[0] == 1_000
    assert max(sizes) <= largest


def test_compiling_is_said_if_it_takes_a_second(tmp_path):
    rows = tmp_path / "rows.jsonl"  # too many for Python to run kernels that are not compiled
    rows.write_bytes(as_json_lines([{"tags": ["a", str(number)], "key": number} for number in range(60_000)]))
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for kernel in copy_of_cache(tmp_path).glob("*-tagmatch.*.nbc"):
        kernel.unlink()
    indexes = [tmp_path / "first.index", tmp_path / "second.index"]
    first, second = (
        on_a_terminal("build", rows, each, "--layout", "balanced", environment=environment) for each in indexes
    )
    assert first.count("compiling kernels, once on this computer") == 1
    assert "compiling kernels" not in second
