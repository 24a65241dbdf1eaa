"""`tagmatch add` and `remove` change an index as a whole or not at all; `tagmatch explain` tells what it has."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from oracle import Oracle
from support.agreement import index_of
from support.command import (
    COMMAND,
    FORMATS,
    Record,
    as_json_lines,
    done,
    ended,
    from_json_lines,
    refused,
    tagmatch,
    write,
)
from support.index_files import contents_of

from tagmatch import TagMatch

pytestmark = pytest.mark.slow

SETS: list[Record] = [{"tags": ["a"], "key": 1}, {"tags": ["a"], "key": 2}, {"tags": ["b", "é"], "key": 2**64 - 1}]
MORE: list[Record] = [{"tags": ["a"], "key": 2}, {"tags": ["c"], "key": 4}, {"tags": [], "key": 5}]


@pytest.fixture
def index(tmp_path):
    return made(tmp_path / "index", SETS, max_partition_size=7)


def made(path: Path, sets: list[Record], **options: Any) -> Path:
    index_of([row["tags"] for row in sets], [row["key"] for row in sets], path, **options).close()
    return path


def contents(index: Path) -> dict[frozenset[str], tuple[int, ...]]:
    with TagMatch.open(index) as tm:
        tm.check()
        return dict(tm)


def stored(*changes: tuple[str, list[Record]]) -> dict[frozenset[str], tuple[int, ...]]:
    oracle = Oracle()
    for name, rows in changes:
        getattr(oracle, name)([row["tags"] for row in rows], [row["key"] for row in rows])
    oracle.consolidate()
    return dict(oracle)


def test_what_changed_is_said(index):
    sets = write(index.with_name("sets.jsonl"), MORE)
    told = f"{index}: 4 sets, 5 keys; before: 2 sets, 3 keys; 2 added, 1 already there\n"
    assert done("add", index, sets) == told
    assert contents(index) == stored(("add_sets", SETS + MORE))
    assert done("remove", index, sets) == f"{index}: 2 sets, 2 keys; before: 4 sets, 5 keys; 3 removed\n"
    assert contents(index) == stored(("add_sets", SETS), ("remove_sets", MORE))
    assert done("remove", index, sets).endswith("; before: 2 sets, 2 keys; 3 missing\n")


def test_a_row_to_remove_that_is_not_there(index):
    """An error, if it is to be one, after which nothing is changed."""
    sets, before = write(index.with_name("sets.jsonl"), [*SETS[:2], SETS[0]]), contents_of(index)
    message = "key 1 is not stored with the set ['a']: nothing is removed"
    assert message in refused("remove", index, sets, "--missing", "error")
    assert contents_of(index) == before
    sets = write(index.with_name("sets.jsonl"), SETS[:2])
    assert tagmatch("remove", index, sets, "--missing", "error").endswith("; 2 removed\n")


@pytest.mark.parametrize("name", ["jsonl", "csv.gz", "parquet"])
def test_formats(index, name):
    sets = index.with_name(f"sets.{name}")
    sets.write_bytes(FORMATS[name](MORE))
    done("add", index, sets)
    assert contents(index) == stored(("add_sets", SETS + MORE))
    tagmatch("remove", index, "-", "--format", name, stdin=sets.read_bytes())
    assert contents(index) == stored(("add_sets", SETS), ("remove_sets", MORE))


@pytest.mark.parametrize("command", ["add", "remove"])
def test_no_rows_change_nothing(index, tmp_path, command):
    before = contents_of(index)
    done(command, index, write(tmp_path / "sets.jsonl", []))
    assert contents_of(index) == before


@pytest.mark.parametrize("command", ["add", "remove"])
@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_bad_row_changes_nothing(index, tmp_path, command, form):
    column, bad = ("tags", {"tags": None, "key": 1}) if form == "parquet" else ("key", {"tags": ["a"], "key": "x"})
    (sets := tmp_path / f"sets.{form}").write_bytes(FORMATS[form]([*MORE, bad]))
    before = contents_of(index)
    message = refused(command, index, sets)
    assert all(word in message for word in (str(sets), f"column '{column}'", "row 3"))
    assert contents_of(index) == before
    assert "skipped 1 invalid row; the first:" in ended(command, index, sets, "--skip-invalid").stderr
    assert contents(index) == stored(("add_sets", SETS), (f"{command}_sets", MORE))


@pytest.mark.parametrize("command", ["add", "remove"])
def test_there_is_no_index(tmp_path, command):
    sets = write(tmp_path / "sets.jsonl", SETS)
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty", "sets.jsonl"):
        message = refused(command, tmp_path / name, sets)
        assert str(tmp_path / name) in message
        assert "tagmatch build" in message
    assert sorted(os.listdir(tmp_path)) == ["empty", "sets.jsonl"]


@pytest.mark.parametrize("command", ["add", "remove"])
def test_another_program_changes_the_index(index, tmp_path, command):
    """After this one has opened it, which is when it opens what it reads."""
    pipe = tmp_path / "sets.pipe"
    os.mkfifo(pipe)
    with subprocess.Popen([COMMAND, command, index, pipe], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with pipe.open("wb") as stream:
            with TagMatch.open(index) as tm:
                tm.add_set(["other"], 7)
                tm.consolidate()
            before = contents_of(index)
            stream.write(as_json_lines(SETS))
        stdout, stderr = process.communicate(timeout=600)
    assert (process.returncode, stdout) == (1, b"")
    (line,) = stderr.decode().splitlines()
    assert all(word in line for word in (str(index), "another program", "run the command again"))
    assert "reload()" not in line
    assert contents_of(index) == before


def test_explain(index):
    output = done("explain", index, "é", "b", "a", "unknown")
    assert sorted(output.splitlines()) == [
        '{"tags":["a"],"keys":[1,2]}',
        '{"tags":["b","é"],"keys":[18446744073709551615]}',
    ]
    assert done("explain", index, "unknown") == ""
    assert from_json_lines(done("explain", index, "a", "a")) == [{"tags": ["a"], "keys": [1, 2]}]
    assert str(index.with_name("nowhere")) in refused("explain", index.with_name("nowhere"), "a")


def test_explain_odd_tags(tmp_path):
    tags = ["-o", "--help", "--", "", "a\nb", '"', "\x1b[1m", "日本語", " "]
    index = made(tmp_path / "index", [{"tags": tags, "key": 1}, {"tags": [], "key": 2}])
    found = [json.loads(line) for line in tagmatch("explain", index, "--", *tags).splitlines()]
    assert sorted(found, key=str) == sorted([{"tags": sorted(tags), "keys": [1]}, {"tags": [], "keys": [2]}], key=str)


def test_explain_tags_that_are_no_text(index):
    output = subprocess.run([COMMAND, "explain", index, b"\xff"], capture_output=True)
    assert output.returncode == 1
    assert b"no UTF-8 form" in output.stderr
