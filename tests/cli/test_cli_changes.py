"""`add`, `remove` and `restore` change an index as a whole or not at all; `explain`, `info`, `--snapshot`, copies."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import Oracle
from support.agreement import index_of
from support.command import (
    COMMAND,
    FORMATS,
    Record,
    as_csv,
    as_json_lines,
    done,
    ended,
    from_json_lines,
    read,
    refused,
    tagmatch,
    write,
)
from support.index_files import contents_of, files_of

from tagmatch import TagMatch

pytest_plugins = ["support.s3_bucket"]
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
    """An error, if the option says so, after which nothing is changed."""
    sets, before = write(index.with_name("sets.jsonl"), [*SETS[:2], SETS[0]]), contents_of(index)
    message = "key 1 is not stored with the set ['a']: nothing is removed"
    assert message in refused("remove", index, sets, "--missing", "error")
    assert contents_of(index) == before
    sets = write(index.with_name("sets.jsonl"), SETS[:2])
    assert tagmatch("remove", index, sets, "--missing", "error").endswith("; 2 removed\n")


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


def test_there_is_no_index(tmp_path):
    sets = write(tmp_path / "sets.jsonl", SETS)
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty", "sets.jsonl"):
        for command in (["add", sets], ["remove", sets], ["match", sets], ["explain", "a"], ["info"], ["check"]):
            message = refused(command[0], tmp_path / name, *command[1:])
            assert str(tmp_path / name) in message
            assert "tagmatch build" in message or command[0] not in ("add", "remove")
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


def test_explain_odd_tags(tmp_path):
    tags = ["-o", "--help", "--", "", "a\nb", '"', "\x1b[1m", "日本語", " "]
    index = made(tmp_path / "index", [{"tags": tags, "key": 1}, {"tags": [], "key": 2}])
    found = [json.loads(line) for line in tagmatch("explain", index, "--", *tags).splitlines()]
    assert sorted(found, key=str) == sorted([{"tags": sorted(tags), "keys": [1]}, {"tags": [], "keys": [2]}], key=str)


def test_explain_tags_that_are_no_text(index):
    output = subprocess.run([COMMAND, "explain", index, b"\xff"], capture_output=True)
    assert output.returncode == 1
    assert b"no UTF-8 form" in output.stderr


# -- snapshots and copies ----------------------------------------------------------------------------------------------

PAIR = [{"tags": ["a"], "key": 1}, {"tags": ["a", "b"], "key": 2}]


@pytest.fixture
def kept(tmp_path):
    """Of three snapshots, with a change staged."""
    path = tmp_path / "index"
    done("build", write(tmp_path / "sets.jsonl", PAIR), path, "--keep-snapshots", 1, "--layout", "balanced")
    for key in (3, 4):
        done("add", path, write(tmp_path / "more.jsonl", [{"tags": [f"t{key}"], "key": key}]))
    with TagMatch(path, device="cpu") as tm:
        tm.add_set(["staged"], 5)
    return path


def rows(index: Any, *options: Any, command: str = "export") -> list[tuple[list[str], int]]:
    found = from_json_lines(done(command, index, *options))
    return sorted((sorted(row["tags"]), row["key"]) for row in found)


STORED = [(["a"], 1), (["a", "b"], 2), (["t3"], 3), (["t4"], 4)]


def test_there_and_back(kept, tmp_path):
    place = tmp_path / "backup"
    nbytes = sum(file.stat().st_size for file in kept.glob("staged-*"))
    told = tagmatch("backup", kept, place)
    assert told.startswith(f"{place}: snapshot 3, 4 sets, 1 staged change; ")
    assert told.endswith(" bytes copied, 0 there already\n")
    assert f"; {nbytes} bytes copied, " in done("backup", kept, place)
    assert rows(place) == STORED
    assert tagmatch("check", place) == f"{place}: ok, 4 sets\n"
    assert tagmatch("restore", place, tmp_path / "new").startswith(f"{tmp_path / 'new'}: snapshot 3, 4 sets, 1 staged")
    with TagMatch(tmp_path / "new", device="cpu") as tm:
        assert tm.stats()["staged"] == 1
        tm.consolidate()
        assert tm.match(["staged"]) == [5]


def test_mistakes(kept, tmp_path):
    place = tmp_path / "backup"
    done("backup", kept, place)
    before = contents_of(kept), contents_of(place)
    for words, told in (
        (["backup", place, kept], f"there is an index at {kept} that is no backup, was changed since it was one,"),
        (["restore", place, kept], f"there is an index at {kept} already; --replace deletes it and its staged"),
        (["restore", tmp_path / "backpu", tmp_path / "new"], f"there is no index at {tmp_path / 'backpu'}: no such"),
        (["backup", kept, tmp_path], f"{tmp_path} is a folder with other files in it; choose an empty or a new"),
        (["restore", place, kept, "--replace", "--snapshot", 2], f"the index {place} does not keep a snapshot 2; it"),
    ):
        assert refused(*words).startswith(f"tagmatch: {told}")
    assert (contents_of(kept), contents_of(place)) == before
    damaged = next(place.glob("segment-*/keys.arrow"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    line = refused("restore", place, kept, "--replace")
    assert f"{damaged} does not have the checksum that it was written with; nothing was copied" in line
    assert contents_of(kept) == before[0]


def test_an_earlier_snapshot(kept, tmp_path):
    queries = write(tmp_path / "queries.jsonl", [{"tags": ["t3", "t4"]}])
    assert rows(kept, "--snapshot", 2) == rows(kept, "--snapshot", 2, command="dump") == STORED[:3]
    assert rows(kept, "--snapshot", 3) == rows(kept, command="dump") == STORED
    assert tagmatch("match", kept, queries, "--snapshot", 2) == '{"id":0,"keys":[3]}\n'
    assert tagmatch("explain", kept, "t4", "--snapshot", 2) == ""
    assert tagmatch("check", kept, "--snapshot", 2) == f"{kept}: ok, 3 sets\n"
    line = refused("export", kept, "--snapshot", 1)
    assert line == f"tagmatch: the index {kept} does not keep a snapshot 1; it has 2 and 3, the current one\n"
    tagmatch("restore", kept, kept, "--replace", "--snapshot", 2)
    assert rows(kept) == STORED[:3]


def test_info(kept):
    ran = subprocess.run([sys.executable, "-m", "tagmatch", "info", kept, "--json"], capture_output=True, check=True)
    shown = json.loads(ran.stdout)
    assert (shown["number"], shown["sets"], shown["layout"]) == (3, 4, "balanced")
    assert sum(each["live"] for each in shown["segments"]) == 4
    assert all(each["rows"] == each["live"] + each["deleted"] for each in shown["segments"])
    snapshots = [(each["number"], each["sets"], each["until"] is None) for each in shown["snapshots"]]
    assert snapshots == [(2, 3, False), (3, 4, True)]
    text = tagmatch("info", kept)
    assert [part for part in ("snapshot 2", "4 sets, the current one", "balanced") if part not in text] == []
    assert json.loads(tagmatch("info", kept, "--json", "--snapshot", 2))["sets"] == 3


def test_check_reads_what_is_kept(kept):
    current = (kept / "MANIFEST.json").read_text()
    earlier = [file for file in files_of(kept) if file.parent.name not in current and file.suffix != ".log"]
    earlier.remove(kept / "MANIFEST.json")
    assert len(earlier) >= 5
    for file in earlier:
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        assert file.name in refused("check", kept)
        file.unlink()
        assert file.name in refused("check", kept)
        file.write_bytes(good)
    tagmatch("check", kept)


def test_a_store(kept, tmp_path, bucket, uri, monkeypatch):
    copies, place = tmp_path / "temporary", f"s3a://{bucket[1]}/folder/index"
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    told = tagmatch("backup", kept, uri)
    assert told.startswith(f"{place}: snapshot 3, 4 sets, 1 staged change; ")
    assert "secret" not in told
    done("restore", uri, tmp_path / "new")
    assert rows(tmp_path / "new") == rows(uri) == STORED
    queries = write(tmp_path / "queries.jsonl", [{"id": 5, "tags": ["b", "a"]}, {"id": 6, "tags": ["x"]}])
    for words in (["info", "--json"], ["export"], ["explain", "a", "b"], ["match", queries, "--threads", 1]):
        printed = [tagmatch(words[0], path, *words[1:]) for path in (tmp_path / "new", uri)]
        assert printed[0] == printed[1] != ""
    assert tagmatch("check", uri) == f"{place}: ok, 4 sets\n"
    assert os.listdir(copies) == []
    assert f"there is no index at {place}/x: it has no MANIFEST.json" in refused(
        "info", f"{place}/x{uri.partition('index')[2]}"
    )
    assert "Arrow does not reach ftp://host/x" in refused("info", "ftp://me:1234@host/x")
    sets = write(tmp_path / "sets.jsonl", PAIR[:1])
    for words in (["build", sets, uri, "--overwrite"], ["add", uri, sets], ["remove", uri, sets], ["add", uri, "none"]):
        line = refused(*words)
        assert line.startswith(f"tagmatch: cannot change {place}: an index on a store is read-")
    with TagMatch.open(uri) as tm:
        assert len(tm) == 4


def test_file_uris(tmp_path):
    sets, uri = write(tmp_path / "sets.jsonl", PAIR), f"file://{tmp_path}/an%20index"
    done("build", sets, uri)
    assert done("remove", uri, sets) == f"{tmp_path}/an index: 0 sets, 0 keys; before: 2 sets, 2 keys; 2 removed\n"
    done("add", tmp_path / "an index", sets)
    done("export", uri, tmp_path / "out.jsonl")
    assert sorted(row["key"] for row in read(tmp_path / "out.jsonl")) == [1, 2]


def texts_in(index: Path) -> dict[tuple[str, ...], tuple[int, ...]]:
    return {tuple(sorted(map(str, tags))): keys for tags, keys in contents(index).items()}


def test_records_of_keys(index, tmp_path) -> None:
    """`put` replaces what keys had, rows of a key being alternatives; `get` writes records, `delete` ends keys."""
    rows = [{"tags": ["d"], "key": 1}, {"tags": ["c"], "key": 7, "where": "n < 5"}, {"tags": ["e"], "key": 1}]
    said = done("put", index, write(tmp_path / "sets.jsonl", rows))
    assert "3 added" in said
    assert "1 removed" in said
    left = {("a",): (2,), ("b", "é"): (2**64 - 1,)}
    assert texts_in(index) == {**left, ("d",): (1,), ("e",): (1,), ("c", "n < 5"): (7,)}
    one, seven = map(json.loads, done("get", index, "1", "7").splitlines())
    assert (one["key"], sorted(each["tags"] for each in one["alternatives"])) == (1, [["d"], ["e"]])
    none = {"area": None, "expires": None}
    assert seven == {"key": 7, "alternatives": [{"tags": ["c"], "where": "n < 5", **none}], "data": {}}
    before = files_of(index)
    assert "key 5 has no sets" in refused("get", index, "5")
    assert "'x' is not an integer" in tagmatch("get", index, "x", code=2)
    assert "5" in refused("delete", index, "7", "5", "--missing", "error")
    assert files_of(index) == before
    assert "2 removed, 1 missing" in done("delete", index, "1", "5")
    assert texts_in(index) == {**left, ("c", "n < 5"): (7,)}


DATA_ROWS = [
    {"key": 1, "tags": ["a"], "email": "é", "rank": 3, "since": "2026-11-28", "price": "1.50", "on": True, "word": "x"},
    {"key": 2, "tags": ["a"], "seen": "2026-11-28T12:00:00+00:00"},
    {"key": 3, "tags": ["b"]},
]
DATA_TYPES = {
    "email": "string", "rank": "int8", "since": "date", "price": "decimal(10, 2)", "on": "bool", "word": "dictionary",
    "seen": "timestamp",
}  # fmt: skip


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("command", ["put", "build"])
def test_data_comes_from_files(tmp_path, form, command):
    index, file = tmp_path / "index", tmp_path / f"rows.{form}"
    places = (file, index)
    if command == "put":
        TagMatch(index, device="cpu").save(index)
        places = (index, file)
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(DATA_ROWS), file)
        types = {"email": "string", "rank": "int8", "on": "bool", "word": "dictionary"}
    else:
        as_text = as_csv([{name: row.get(name) for name in ("key", "tags", *DATA_TYPES)} for row in DATA_ROWS])
        file.write_bytes(as_text if form == "csv" else as_json_lines(DATA_ROWS))
        types = DATA_TYPES
    others = ["--ignore-columns", ",".join(sorted({*DATA_TYPES} - {*types}))] if {*DATA_TYPES} - {*types} else []
    done(command, *places, *(f"--data={name}={kind}" for name, kind in types.items()), *others)
    for row in DATA_ROWS:
        expected = {name: value for name, value in row.items() if name in types}
        assert json.loads(done("get", index, row["key"]))["data"] == expected
    queries = write(tmp_path / "queries.jsonl", [{"tags": ["a"]}])
    (answer,) = map(json.loads, done("match", index, queries, "--columns", "word,email").splitlines())
    assert sorted(answer["keys"], key=lambda each: each["key"]) == [{"key": 1, "word": "x", "email": "é"}, {"key": 2}]
    file.write_bytes(as_json_lines([{"key": 1, "tags": ["a"], "rank": 300}]))
    assert "takes values of int8" in refused("put", index, file, "--format", "jsonl")
    for wrong in (5, 1.5, True, ["x"], {"x": "y"}):
        file.write_bytes(
            as_json_lines([{"key": 1, "tags": ["a"], "email": "x"}, {"key": 1, "tags": ["a"], "email": wrong}])
        )
        told = refused("put", index, file, "--format", "jsonl")
        assert "line 2: column 'email': row 1: data: column 'email' takes values of string, not" in told
    file.write_bytes(as_json_lines([{"key": 1, "tags": ["a"], "rank": 7}]))
    done("put", index, file, "--format", "jsonl")
    assert json.loads(done("get", index, 1))["data"] == {"rank": 7}


def test_null_tags_of_some_files_and_rows_are_put_with_data(tmp_path):
    """A condition is enough, also with rows between them that cannot be used."""
    schema = pa.schema({"key": pa.int64(), "tags": pa.list_(pa.string()), "where": pa.string(), "tenant": pa.string()})
    rows = [(1, ["a"], None, "x"), (2, None, "price < 5", "x"), (-3, ["a"], None, "x"), (4, ["d"], None, "y")]
    folder, index = tmp_path / "sets", tmp_path / "index"
    folder.mkdir()
    for name, some in (("1", rows[:1]), ("2", rows[1:])):
        pq.write_table(
            pa.table([list(each) for each in zip(*some, strict=True)], schema=schema), folder / f"{name}.parquet"
        )
    for places in (["build", folder, index], ["put", index, folder]):
        done(*places, "--data=tenant=string", "--skip-invalid")
        with TagMatch.open(index) as tm:
            found = {key: (sorted(each.tags), each.where, each.data["tenant"]) for key, each in tm.records.items()}
        assert found == {1: (["a"], None, "x"), 2: ([], "price < 5", "x"), 4: (["d"], None, "y")}
