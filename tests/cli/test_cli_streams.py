"""Streams: every answer is written or an error comes, queries are answered as they arrive, and terminals see a bar."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command import (
    COMMAND,
    as_json_lines,
    closing,
    done,
    ended,
    from_json_lines,
    growing_at_most,
    started,
    tagmatch,
    write,
)
from support.kernel_cache import copy_of_cache

from tagmatch import TagMatch
from tagmatch.cli.progress import steps
from tagmatch.files.columns import ID, QUERY_TAGS
from tagmatch.files.invalid import InvalidRows
from tagmatch.files.json_lines import JsonLines, json_blocks
from tagmatch.files.lines import TextReader

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Each query with `a` has key 1, each with `many` 200 others."""
    path = tmp_path_factory.mktemp("streams") / "index"
    with TagMatch(path) as tm:
        tm.add_set(["a"], 1)
        tm.add_sets([["many"]] * 200, range(1_000_000, 1_000_200))
        tm.consolidate()
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
    with TagMatch(path) as tm:
        tm.add_sets([["x" * 1_000_000]], [0])
        tm.consolidate()
        for first in range(1, 600, 50):
            tm.add_sets([["x" * 1_000_000]] * 50, range(first, first + 50))
        tm.consolidate()
    return path


@pytest.fixture(scope="module")
def expected(index, large):
    return done("match", index, large).encode()


UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
BUFFERING = pytest.mark.parametrize("environment", [{}, pytest.param(UNBUFFERED, marks=pytest.mark.nightly)], ids=str)
#: Of which short tests take the first
FORMATS = pytest.mark.parametrize(
    "name", ["jsonl", *(pytest.param(n, marks=pytest.mark.nightly) for n in ("csv.gz", "parquet"))]
)


# -- output ------------------------------------------------------------------------------------------------------------


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


@BUFFERING
@pytest.mark.parametrize("limit", [(1 << 20) + 4321, pytest.param(1 << 20, marks=pytest.mark.nightly)])
def test_a_file_that_may_not_grow(index, large, tmp_path, environment, limit):
    """As a disk that gets full, it takes a part of what is written at once."""
    with (tmp_path / "answers.jsonl").open("wb") as file:
        process = started(
            "match",
            index,
            large,
            stdout=file,
            environment=environment,
            before=growing_at_most(limit),
        )
        _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    assert stderr.decode() == "tagmatch: standard output: File too large\n"


@BUFFERING
def test_a_full_disk(index, large, environment):
    commands = [["info", index], ["match", index, large], ["export", index, "--format", "parquet"], ["--help"]]
    with Path("/dev/full").open("wb") as full:
        for arguments in commands:
            process = started(*arguments, stdout=full, environment=environment)
            _, stderr = process.communicate(timeout=600)
            assert process.returncode == 1, arguments
            assert stderr.decode() == "tagmatch: standard output: No space left on device\n"


@BUFFERING
@pytest.mark.parametrize("command", ["match", "export"])
def test_a_reader_that_has_had_enough(index, large, large_index, environment, command):
    arguments = [command, index, large] if command == "match" else [command, large_index]
    with started(*arguments, stdout=subprocess.PIPE, environment=environment) as process:
        process.stdout.read(1_000)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "closed", "message"),
    [
        (["match", "INDEX", "-"], 0, "standard input: cannot be read: it is closed"),
        (["build", "-", "NEW"], 0, "standard input: cannot be read: it is closed"),
        (["match", "INDEX", "LARGE"], 1, "standard output: it is closed"),
        (["info", "INDEX"], 1, "standard output: it is closed"),
        (["--help"], 1, "standard output: it is closed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_standard_streams_that_are_closed(index, large, tmp_path, arguments, closed, message):
    paths = {"INDEX": index, "LARGE": large, "NEW": tmp_path / "new"}
    process = started(*(paths.get(word, word) for word in arguments), before=closing(closed))
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    assert stderr.decode() == f"tagmatch: {message}\n"


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_streams_that_are_not_needed_may_be_closed(index, large, expected, tmp_path, closed):
    """Nor does a file that is opened get the number of one."""
    output = tmp_path / "answers.jsonl"
    process = started("match", index, large, "-o", output, before=closing(closed), stderr=None)
    assert process.wait(600) == 0
    assert output.read_bytes() == expected


def test_an_error_without_standard_error(index, tmp_path):
    process = started(
        "match", index, tmp_path / "nowhere.jsonl", before=closing(2), stdout=subprocess.PIPE, stderr=None
    )
    assert process.communicate(timeout=600) == (b"", None)
    assert process.returncode == 1


@FORMATS
def test_a_file_appears_only_when_it_is_whole(large_index, tmp_path, name):
    """On a disk that gets full; what is there stays."""
    file = tmp_path / f"sets.{name}"
    file.write_text("older")
    process = started("export", large_index, file, before=growing_at_most(2_000))  # bytes, also of what is compressed
    _, stderr = process.communicate(timeout=600)
    assert process.returncode == 1
    assert stderr.decode() == f"tagmatch: {file}: cannot be written: File too large\n"
    assert os.listdir(tmp_path) == [file.name]
    assert file.read_text() == "older"


# A process has at least the peak of the one that started it, so that one is to be small
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)
"""


@FORMATS
def test_memory_is_bounded(large_index, name):
    """It is less than half of what is written."""
    command = [sys.executable, "-c", PEAK, COMMAND, "export", large_index, "--format", name]
    peak = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(peak.stdout) < 400_000_000


# -- input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocking", [True, False])
def test_queries_are_answered_as_they_come(index, blocking):
    reader, writer = os.pipe()
    os.set_blocking(reader, blocking)
    with (
        started("match", index, "-", stdin=reader, stdout=subprocess.PIPE) as process,
        os.fdopen(writer, "wb", 0) as pipe,
    ):
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


RECORDS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"tags": st.lists(st.sampled_from("ab"), max_size=2)}, optional={"id": st.just(None)}),
        st.fixed_dictionaries({"tags": st.just([])}, optional={"id": st.integers(-(2**63), 2**64 - 1)}),
        st.fixed_dictionaries({"tags": st.just(["c"]), "id": st.sampled_from(["x", "", '"'])}),
        st.sampled_from([{}, {"tags": None}, {"tags": [None]}, {"tags": "a"}, {"tags": [], "id": 1.5}, []]),
        st.sampled_from(["", " \t", "{", '{"tags": ["a"]} {"tags": ["b"]}', '{"tags":', "[]}"]),
    )
)


@given(records=RECORDS, cuts=st.lists(st.integers(0, 30)))
def test_what_a_line_means_does_not_depend_on_when_it_comes(records, cuts):
    lines = [(record if isinstance(record, str) else json.dumps(record)).encode() + b"\n" for record in records]
    whole = seen([b"".join(lines)] if lines else [])
    edges = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    parts = [b"".join(lines[begin:end]) for begin, end in itertools.pairwise(edges)]
    assert seen(parts) == whole == seen(lines)
    rows, faults = whole
    assert len(rows) + len(faults) == sum(bool(line.strip()) for line in lines)
    assert [number for number, *_ in rows] == sorted({number for number, *_ in rows})


def test_two_rows_of_a_line_are_no_row_also_beside_a_blank_line():
    rows, faults = seen([b'\n{"tags": ["a"]} {"tags": ["b"]}\n'])
    assert not rows
    assert len(faults) == 1


def seen(blocks: list[bytes]) -> tuple[list[tuple[int, Any, Any]], list[str]]:
    """Number, id and tags of the good rows, and what is wrong with the others."""
    faults: list[str] = []

    class Recorded(InvalidRows):
        def found(self, error):
            faults.append(str(error))

    columns = (QUERY_TAGS, ID)
    reader = TextReader("queries", JsonLines(columns), columns, Recorded(), 0)
    rows = []
    left = iter(blocks)
    for batch, numbers in reader.rows(json_blocks(lambda _: next(left, b""))):
        rows += zip(numbers.tolist(), batch["id"].to_pylist(), batch["tags"].to_pylist(), strict=True)
    return rows, faults


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
    (line,) = done.stderr.splitlines()
    assert line.startswith("tagmatch: skipped 3 invalid rows; the first: ")
    assert str(queries) in line
    assert "row 1" in line


def test_skip_invalid_sets(tmp_path):
    sets = [{"tags": ["a"], "key": 1}, {"tags": ["a"], "key": -1}, {"tags": ["b"]}, {"tags": ["b"], "key": 2}]
    done = ended("build", "-", tmp_path / "index", "--skip-invalid", stdin=as_json_lines(sets))
    assert done.returncode == 0
    assert done.stderr.startswith("tagmatch: skipped 2 invalid rows; the first: standard input: line 2: ")
    with TagMatch.open(tmp_path / "index") as tm:
        assert sorted(tm.match(["a", "b"])) == [1, 2]


def test_nothing_is_said_where_nothing_is_skipped(index):
    tagmatch("match", index, "-", "--skip-invalid", stdin=as_json_lines([GOOD]))


# -- terminals ---------------------------------------------------------------------------------------------------------

ROWS = 5_000


@pytest.fixture(scope="module")
def many(index):
    return write(index.with_name("queries.parquet"), [{"tags": ["a"]}] * ROWS)


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
    assert process.wait(600) == 0, b"".join(shown)
    return b"".join(shown).decode()


def test_a_bar_where_answers_go_elsewhere(index, many, tmp_path):
    for arguments in (["-o", tmp_path / "answers.jsonl"], []):
        with (tmp_path / "stdout").open("wb") as stdout:
            shown = on_a_terminal("match", index, many, *arguments, stdout=stdout.fileno())
        assert "matching" in shown
        assert f"{ROWS}/{ROWS}" in shown
        assert re.search(r"[\d,]+/s", shown)
        assert "left:" in shown
        file = tmp_path / ("answers.jsonl" if arguments else "stdout")
        assert [answer["id"] for answer in from_json_lines(file.read_text())] == list(range(ROWS))


@pytest.mark.parametrize("output", ["-", "/dev/stdout"])
def test_no_bar_among_the_answers(index, many, output):
    shown = on_a_terminal("match", index, many, "-o", output)
    assert [answer["id"] for answer in from_json_lines(shown.replace("\r\n", "\n"))] == list(range(ROWS))


def test_a_bar_of_an_export(large_index, tmp_path):
    assert "exporting" in on_a_terminal("export", large_index, tmp_path / "sets.csv")
    assert "exporting" not in on_a_terminal("export", large_index)


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
