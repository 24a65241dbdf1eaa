"""Indexes that earlier versions have written are opened, answer, and are written in the format of today."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import pytest
from oracle import Oracle
from support.agreement import assert_agree
from support.conditions import Message
from support.index_files import MANIFEST, contents_of
from support.old_formats import CONTENTS, DATA, SETS

import tagmatch
from tagmatch import IndexVersionError, TagMatch, TagMatchError
from tagmatch.model.options import Layout
from tagmatch.model.storage.format import FORMAT_VERSION

EVERYTHING = [tag for tags in SETS for tag in tags]
QUERIES = [
    [*SETS[4], *SETS[9], *SETS[33]], ["all"], ["new", "staged", "é"], [], EVERYTHING,
    Message(EVERYTHING, {"x": 9, "y": True, "name": "IBM é", "city": ["Oslo", "Rome"], "list price": 1.5}),
    Message([*EVERYTHING, "staged", "sold"], {"x": 0.5, "y": True, "name": "é", "list price": float("nan")}),
]  # fmt: skip
OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}

each_index = pytest.mark.parametrize("name", CONTENTS)


@pytest.fixture
def index(tmp_path: Path, name: str, layout: str) -> Path:
    return Path(shutil.copytree(DATA / f"{name}-{layout}.index", tmp_path / "index"))


@pytest.fixture
def oracle(name: str) -> Oracle:
    oracle = Oracle()
    CONTENTS[name][1](oracle)
    return oracle


def format_of(index: Path) -> int:
    found: int = json.loads((index / MANIFEST).read_text())["format"]
    return found


def first_number_of(name: str) -> int:
    """Snapshots without a number count as 0."""
    return 0 if format_of(DATA / f"{name}-rarest.index") < 4 else 1


def written_as(name: str) -> int:
    """Formats 4 to 7 are for what an index has, as keys that expire; all others become format 3."""
    return max(3, format_of(DATA / f"{name}-rarest.index"))


def test_every_format_is_here() -> None:
    found = {f"{name}-{each}.index": int(name[-1]) for name in CONTENTS for each in get_args(Layout)}
    assert {path.name for path in DATA.iterdir()} == {*found, "README.md"}
    assert {name: format_of(DATA / name) for name in found} == found
    assert set(found.values()) == set(range(1, FORMAT_VERSION + 1)), "one that the last version wrote is missing"


@each_index
def test_it_answers_and_can_be_changed(index: Path, oracle: Oracle, name: str, layout: str) -> None:
    key_type = CONTENTS[name][0]
    before = contents_of(index)
    with TagMatch.open(index, key_type=key_type, **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
        stats = tm.stats()
        assert (stats["layout"], stats["max_partition_size"], stats["number"]) == (layout, 7, first_number_of(name))
        assert stats["staged"] == oracle.staged
    assert contents_of(index) == before, "to read it changes it"
    with TagMatch(index, layout=layout, max_partition_size=7, **OPTIONS) as tm:
        for database in (tm, oracle):
            database.add_set(["one", "more"], 5 if key_type == "integer" else "five")
            database.remove_set(SETS[12], next(iter(dict(oracle)[frozenset(SETS[12])])))
            database.consolidate()
        assert_agree(tm, oracle, QUERIES)
    # Its tables, written anew, are not so large that they need parts
    assert format_of(index) == (3 if name == "format-7" else written_as(name))
    with TagMatch.open(index, **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
        assert (tm.stats()["number"], tm.stats()["staged"]) == (first_number_of(name) + 1, 0)


@each_index
def test_it_can_be_kept_copied_and_restored(index: Path, oracle: Oracle, name: str, tmp_path: Path) -> None:
    stored = dict(oracle)
    tagmatch.backup(index, tmp_path / "backup")
    with TagMatch(index, keep_snapshots=1, **OPTIONS) as tm:
        tm.add_set(["one", "more"], 5 if CONTENTS[name][0] == "integer" else "five")
        tm.consolidate()
    with TagMatch.open(index, snapshot=first_number_of(name), **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
    tagmatch.restore(tmp_path / "backup", tmp_path / "restored")
    assert format_of(tmp_path / "restored") == written_as(name)
    with TagMatch.open(tmp_path / "restored", **OPTIONS) as tm:
        assert dict(tm) == stored
        assert tm.stats()["staged"] == oracle.staged
        tm.consolidate()
        oracle.consolidate()
        assert_agree(tm, oracle, QUERIES)


@pytest.mark.parametrize("tag", ["\0+x", "\0-rprice\0[1:x", "\0=a\0b1", "\0+"])
def test_tags_that_stand_for_constraints_by_now_are_refused(tmp_path: Path, tag: str) -> None:
    """Versions before format 5 stored them as any other tag, and said nothing of them in the manifest."""
    index = tmp_path / "index"
    none: Any = lambda *_: None  # noqa: E731
    with (
        patch("tagmatch.model.columns.is_reserved", none),
        patch("tagmatch.model.storage.segment_files.has_reserved", none),
        TagMatch(index, **OPTIONS) as tm,
    ):
        tm.add_set(["a", tag], 7)
        with suppress(TagMatchError):  # it is saved, but what answers takes the tag for a constraint
            tm.consolidate()
    assert format_of(index) == 3
    with pytest.raises(IndexVersionError, match="stand for constraints since format 5"):
        TagMatch.open(index, **OPTIONS)
