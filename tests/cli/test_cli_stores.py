"""The commands on an index that lies on a store: what reads works as on a folder, what writes is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.command import read, tagmatch, write

from tagmatch import TagMatch

pytest_plugins = ["support.s3_bucket"]
pytestmark = pytest.mark.slow

SETS = [{"tags": ["a"], "key": 1}, {"tags": ["a", "b"], "key": 2}, {"tags": [], "key": 3}]
QUERIES = [{"id": 5, "tags": ["b", "a"]}, {"id": 6, "tags": ["x"]}]


@pytest.fixture
def folder(tmp_path: Path, uri: str) -> Path:
    """An index in a folder, which is on the store, too."""
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([row["tags"] for row in SETS], [row["key"] for row in SETS])
        tm.consolidate()
        tm.save(uri)
    return tmp_path / "index"


def test_commands_that_read(folder: Path, bucket, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = tmp_path / "temporary"
    copies.mkdir()
    monkeypatch.setenv("TMPDIR", str(copies))
    queries = write(tmp_path / "queries.jsonl", QUERIES)
    for words in (["info", "--json"], ["export"], ["explain", "a", "b"], ["match", queries, "--threads", 1]):
        printed = [tagmatch(words[0], index, *words[1:]) for index in (folder, uri)]
        assert printed[0] == printed[1] != ""
    assert tagmatch("check", uri) == f"s3a://{bucket[1]}/folder/index: ok, 3 sets\n"
    assert os.listdir(copies) == []


@pytest.mark.usefixtures("folder")
def test_commands_that_write(bucket, uri: str, tmp_path: Path) -> None:
    sets = write(tmp_path / "sets.jsonl", SETS[:1])
    for words in (["build", sets, uri, "--overwrite"], ["add", uri, sets], ["remove", uri, sets], ["add", uri, "none"]):
        line = tagmatch(*words, code=1)
        assert line.startswith(f"tagmatch: cannot change s3a://{bucket[1]}/folder/index: an index on a store is read-")
        assert "`tagmatch-partition`" in line
    with TagMatch.open(uri) as tm:
        assert len(tm) == len(SETS)


def test_a_store_without_an_index(bucket, uri: str) -> None:
    line = tagmatch("info", uri, code=1)
    assert line.startswith(f"tagmatch: there is no index at s3a://{bucket[1]}/folder/index: it has no MANIFEST.json")
    assert "Arrow does not reach ftp://host/x" in tagmatch("info", "ftp://me:1234@host/x", code=1)


def test_an_empty_path() -> None:
    assert tagmatch("info", "", code=1) == "tagmatch: INDEX is empty; give the path of a folder\n"


def test_file_uris(tmp_path: Path) -> None:
    sets, uri = write(tmp_path / "sets.jsonl", SETS), f"file://{tmp_path}/an%20index"
    tagmatch("build", sets, uri)
    assert tagmatch("remove", uri, sets) == f"{tmp_path}/an index: 0 sets, 0 keys; before: 3 sets, 3 keys; 3 removed\n"
    tagmatch("add", tmp_path / "an index", sets)
    tagmatch("export", uri, tmp_path / "out.jsonl")
    assert sorted(row["key"] for row in read(tmp_path / "out.jsonl")) == [1, 2, 3]
