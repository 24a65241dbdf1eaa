"""Indexes that earlier versions have written are opened, answer, and are written in the format of today."""

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


def format_of(index: Path) -> int:
    found: int = json.loads((index / MANIFEST).read_text())["format"]
    return found


def test_every_format_is_here() -> None:
    found = {f"{name}-{each}.index": int(name[-1]) for name in CONTENTS for each in get_args(Layout)}
    assert {path.name for path in DATA.iterdir()} == {*found, "README.md"}
    assert {name: format_of(DATA / name) for name in found} == found
    assert set(found.values()) == set(range(1, FORMAT_VERSION + 1)), "one that the last version wrote is missing"


@pytest.mark.parametrize("name", CONTENTS)
def test_it_answers_and_can_be_changed_kept_copied_and_restored(tmp_path: Path, name: str, layout: str) -> None:
    index, oracle = Path(shutil.copytree(DATA / f"{name}-{layout}.index", tmp_path / "index")), Oracle()
    key_type, fill = CONTENTS[name]
    fill(oracle)
    before, stored, staged = contents_of(index), dict(oracle), oracle.staged
    # Snapshots without a number count as 0; formats 4 to 7 are for what an index has, as keys that expire
    number, written_as = int(format_of(index) >= 4), max(3, format_of(index))
    with TagMatch.open(index, key_type=key_type, **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
        stats = tm.stats()
        assert (stats["layout"], stats["max_partition_size"], stats["number"]) == (layout, 7, number)
        assert stats["staged"] == staged
    assert contents_of(index) == before, "to read it changes it"
    tagmatch.backup(index, tmp_path / "backup")
    with TagMatch(index, layout=layout, max_partition_size=7, keep_snapshots=1, **OPTIONS) as tm:
        for database in (tm, oracle):
            database.add_set(["one", "more"], 5 if key_type == "integer" else "five")
            database.remove_set(SETS[12], next(iter(dict(oracle)[frozenset(SETS[12])])))
            database.consolidate()
        assert_agree(tm, oracle, QUERIES)
    with TagMatch.open(index, **OPTIONS) as tm:
        assert_agree(tm, oracle, QUERIES)
        assert (tm.stats()["number"], tm.stats()["staged"]) == (number + 1, 0)
    earlier = Oracle()
    fill(earlier)
    with TagMatch.open(index, snapshot=number, **OPTIONS) as tm:
        assert_agree(tm, earlier, QUERIES)
    tagmatch.restore(tmp_path / "backup", tmp_path / "restored")
    assert format_of(tmp_path / "restored") == written_as
    with TagMatch.open(tmp_path / "restored", **OPTIONS) as tm:
        assert (dict(tm), tm.stats()["staged"]) == (stored, staged)
        tm.consolidate()
        earlier.consolidate()
        assert_agree(tm, earlier, QUERIES)


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
