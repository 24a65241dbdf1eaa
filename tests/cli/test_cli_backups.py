"""`tagmatch backup`, `restore`, and `--snapshot`: what they do and say, and the mistakes that they stop."""

import json
import os
from typing import Any

import pytest
from support.command import done, from_json_lines, read, refused, tagmatch, write
from support.index_files import contents_of, files_of

from tagmatch import TagMatch

pytest_plugins = ["support.s3_bucket"]
pytestmark = pytest.mark.slow

SETS = [{"tags": ["a"], "key": 1}, {"tags": ["a", "b"], "key": 2}]


@pytest.fixture
def index(tmp_path):
    """Of three snapshots, with a change staged."""
    path = tmp_path / "index"
    done("build", write(tmp_path / "sets.jsonl", SETS), path, "--keep-snapshots", 1)
    for key in (3, 4):
        done("add", path, write(tmp_path / "more.jsonl", [{"tags": [f"t{key}"], "key": key}]))
    with TagMatch(path, device="cpu") as tm:
        tm.add_set(["staged"], 5)
    return path


def rows(index: Any, *options: Any, command: str = "export") -> list[tuple[list[str], int]]:
    found = from_json_lines(done(command, index, *options))
    return sorted((sorted(row["tags"]), row["key"]) for row in found)


STORED = [(["a"], 1), (["a", "b"], 2), (["t3"], 3), (["t4"], 4)]


def test_there_and_back(index, tmp_path):
    place = tmp_path / "backup"
    nbytes = sum(file.stat().st_size for file in index.glob("staged-*"))
    told = tagmatch("backup", index, place)
    assert told.startswith(f"{place}: snapshot 3, 4 sets, 1 staged change; ")
    assert told.endswith(" bytes copied, 0 there already\n")
    assert f"; {nbytes} bytes copied, " in done("backup", index, place)
    assert rows(place) == STORED
    assert tagmatch("check", place) == f"{place}: ok, 4 sets\n"
    assert tagmatch("restore", place, tmp_path / "new").startswith(f"{tmp_path / 'new'}: snapshot 3, 4 sets, 1 staged")
    with TagMatch(tmp_path / "new", device="cpu") as tm:
        assert tm.stats()["staged"] == 1
        tm.consolidate()
        assert tm.match(["staged"]) == [5]


def test_mistakes(index, tmp_path):
    place = tmp_path / "backup"
    done("backup", index, place)
    before = contents_of(index), contents_of(place)
    for words, told in (
        (["backup", place, index], f"there is an index at {index} that is no backup, was changed since it was one,"),
        (["restore", place, index], f"there is an index at {index} already; with --replace it is lost, and what is"),
        (["restore", tmp_path / "backpu", tmp_path / "new"], f"there is no index at {tmp_path / 'backpu'}: no such"),
        (["backup", index, tmp_path], f"{tmp_path} is a folder with other files in it; choose an empty or a new"),
        (["restore", place, index, "--replace", "--snapshot", 2], f"the index {place} does not keep a snapshot 2; it"),
    ):
        assert refused(*words).startswith(f"tagmatch: {told}")
    assert (contents_of(index), contents_of(place)) == before
    damaged = next(place.glob("segment-*/keys.arrow"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    line = refused("restore", place, index, "--replace")
    assert f"{damaged} does not have the checksum that it was written with; nothing was copied" in line
    assert contents_of(index) == before[0]


def test_an_earlier_snapshot(index, tmp_path):
    queries = write(tmp_path / "queries.jsonl", [{"tags": ["t3", "t4"]}])
    assert rows(index, "--snapshot", 2) == rows(index, "--snapshot", 2, command="dump") == STORED[:3]
    assert rows(index, "--snapshot", 3) == rows(index, command="dump") == STORED
    assert tagmatch("match", index, queries, "--snapshot", 2) == '{"id":0,"keys":[3]}\n'
    assert tagmatch("explain", index, "t4", "--snapshot", 2) == ""
    assert tagmatch("check", index, "--snapshot", 2) == f"{index}: ok, 3 sets\n"
    line = refused("export", index, "--snapshot", 1)
    assert line == f"tagmatch: the index {index} does not keep a snapshot 1; it has 2 and 3, the current one\n"
    tagmatch("restore", index, index, "--replace", "--snapshot", 2)
    assert rows(index) == STORED[:3]


def test_info(index):
    shown = json.loads(tagmatch("info", index, "--json"))
    assert (shown["number"], shown["sets"]) == (3, 4)
    assert sum(each["live"] for each in shown["segments"]) == 4
    assert all(each["rows"] == each["live"] + each["deleted"] for each in shown["segments"])
    snapshots = [(each["number"], each["sets"], each["until"] is None) for each in shown["snapshots"]]
    assert snapshots == [(2, 3, False), (3, 4, True)]
    text = tagmatch("info", index)
    assert "snapshot 2" in text
    assert "4 sets, the current one" in text
    assert json.loads(tagmatch("info", index, "--json", "--snapshot", 2))["sets"] == 3


def test_check_reads_what_is_kept(index):
    current = (index / "MANIFEST.json").read_text()
    kept = [file for file in files_of(index) if file.parent.name not in current and file.suffix != ".log"]
    kept.remove(index / "MANIFEST.json")
    assert len(kept) >= 5
    for file in kept:
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        assert file.name in refused("check", index)
        file.unlink()
        assert file.name in refused("check", index)
        file.write_bytes(good)
    tagmatch("check", index)


def test_a_store(index, tmp_path, bucket, uri, monkeypatch):
    copies, place = tmp_path / "temporary", f"s3a://{bucket[1]}/folder/index"
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    told = tagmatch("backup", index, uri)
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
    sets = write(tmp_path / "sets.jsonl", SETS[:1])
    for words in (["build", sets, uri, "--overwrite"], ["add", uri, sets], ["remove", uri, sets], ["add", uri, "none"]):
        line = refused(*words)
        assert line.startswith(f"tagmatch: cannot change {place}: an index on a store is read-")
    with TagMatch.open(uri) as tm:
        assert len(tm) == 4


def test_file_uris(tmp_path):
    sets, uri = write(tmp_path / "sets.jsonl", SETS), f"file://{tmp_path}/an%20index"
    done("build", sets, uri)
    assert done("remove", uri, sets) == f"{tmp_path}/an index: 0 sets, 0 keys; before: 2 sets, 2 keys; 2 removed\n"
    done("add", tmp_path / "an index", sets)
    done("export", uri, tmp_path / "out.jsonl")
    assert sorted(row["key"] for row in read(tmp_path / "out.jsonl")) == [1, 2]
