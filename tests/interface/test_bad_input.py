"""What cannot be used is refused with an error that names it, and changes nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tagmatch import ClosedError, IndexNotFoundError, TagMatch, TagMatchError

STORED = {frozenset("ab"): (1, 2), frozenset("c"): (3,), frozenset(): (4,)}
CONSOLIDATED = {frozenset("ab"): (2,), frozenset("c"): (3, 5), frozenset("d"): (6,)}
EVERYTHING = list("abcde")

BAD_TAGS = {
    "bare string": ("ab", TypeError),
    "bare string of one tag": ("a", TypeError),
    "empty bare string": ("", TypeError),
    "string subclass": (np.str_("ab"), TypeError),
    "bytes": (b"ab", TypeError),
    "empty bytes": (b"", TypeError),
    "bytearray": (bytearray(b"ab"), TypeError),
    "memoryview": (memoryview(b"ab"), TypeError),
    "mapping": ({"a": 9}, TypeError),
    "empty mapping": ({}, TypeError),
    "None": (None, TypeError),
    "NaN": (float("nan"), TypeError),
    "number": (5, TypeError),
    "object": (object(), TypeError),
    "numbers": (["a", 5], TypeError),
    "None among tags": (["a", None], TypeError),
    "NaN among tags": (["a", float("nan")], TypeError),
    "bytes among tags": (["a", b"b"], TypeError),
    "nested list": ([["a", "b"]], TypeError),
    "nested tuple": ({("a", "b")}, TypeError),
    "numbers in NumPy": (np.array([1, 2]), TypeError),
    "numbers in Arrow": (pa.array([1, 2]), TypeError),
    "null in Arrow": (pa.array(["a", None]), TypeError),
    "lone surrogate": (["a", "\ud800"], ValueError),
    "surrogates in the wrong order": (["\udc00\ud800"], ValueError),
}

BAD_KEYS = {
    "None": (None, TypeError),
    "True": (True, TypeError),
    "False": (False, TypeError),
    "NumPy bool": (np.bool_(True), TypeError),
    "float": (1.0, TypeError),
    "NaN": (float("nan"), TypeError),
    "NumPy float": (np.float64(1), TypeError),
    "NumPy NaN": (np.float32("nan"), TypeError),
    "decimal": (Decimal(1), TypeError),
    "complex": (1 + 0j, TypeError),
    "string": ("1", TypeError),
    "bytes": (b"1", TypeError),
    "list": ([1], TypeError),
    "array": (np.array([1]), TypeError),
    "negative": (-1, ValueError),
    "very negative": (-(2**64), ValueError),
    "negative NumPy": (np.int8(-1), ValueError),
    "2**64": (2**64, ValueError),
    "huge": (10**100, ValueError),
}

SINGLE_QUERIES = {
    "match": lambda tm, tags: tm.match(tags),
    "match_unique": lambda tm, tags: tm.match_unique(tags),
    "submit": lambda tm, tags: tm.submit(tags).result(timeout=60),
    "submit unique": lambda tm, tags: tm.submit(tags, unique=True).result(timeout=60),
    "explain": lambda tm, tags: tm.explain(tags),
    "in": lambda tm, tags: tags in tm,
}
SINGLE_CALLS = {
    "add_set": lambda tm, tags: tm.add_set(tags, 1),
    "remove_set": lambda tm, tags: tm.remove_set(tags, 1),
    **SINGLE_QUERIES,
}
BULK_CALLS = {
    "add_sets": ("tags", lambda tm, rows: tm.add_sets(rows, [1, 2, 3])),
    "remove_sets": ("tags", lambda tm, rows: tm.remove_sets(rows, [1, 2, 3])),
    "match_many": ("queries", lambda tm, rows: tm.match_many(rows)),
    "match_many unique": ("queries", lambda tm, rows: tm.match_many(rows, unique=True)),
}


def cases(table: dict[str, Any]) -> Any:
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), id=name) for name, case in table.items()]


@pytest.fixture
def tm(layout: str) -> Iterator[TagMatch]:
    """An index with staged changes; when the test ends, both must be as they were."""
    with TagMatch(layout=layout) as tm:
        tm.add_sets([["a", "b"], ["b", "a"], ["c"], []], [1, 2, 3, 4])
        tm.consolidate()
        tm.add_sets([["c"], ["d"], ["e"]], [5, 6, 7])
        tm.remove_sets([["a", "b"], []], [1, 4])
        tm.remove_set(["e"], 7)
        yield tm
        assert dict(tm.explain(EVERYTHING)) == STORED
        assert sorted(tm.match(EVERYTHING)) == [1, 2, 3, 4]
        tm.consolidate()
        tm.check()
        assert dict(tm.explain(EVERYTHING)) == CONSOLIDATED
        assert len(tm) == len(CONSOLIDATED)


@pytest.mark.parametrize("call", cases(SINGLE_CALLS))
@pytest.mark.parametrize(("tags", "error"), cases(BAD_TAGS))
def test_tags(tm, call, tags, error):
    with pytest.raises(error, match=r"\btags\b"):
        call(tm, tags)


@pytest.mark.parametrize(("name", "call"), cases(BULK_CALLS))
@pytest.mark.parametrize(("tags", "error"), cases(BAD_TAGS))
def test_tags_in_bulk(tm, name, call, tags, error):
    with pytest.raises(error, match=rf"\b{name}\b.*\brow 1\b"):
        call(tm, [["a"], tags, ["b"]])


def without_address(value):
    """The same in every process that shares the tests."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


@pytest.mark.parametrize(("name", "call"), cases(BULK_CALLS))
@pytest.mark.parametrize(
    "rows",
    [None, "abc", b"abc", 5, float("nan"), object(), {"a": ["b"]}, {("a",)}, ["a", "b", "c"]],
    ids=without_address,
)
def test_rows_that_are_none(tm, name, call, rows):
    with pytest.raises(TypeError, match=rf"\b{name}\b"):
        call(tm, rows)


@pytest.mark.parametrize("call", ["add_set", "remove_set"])
@pytest.mark.parametrize(("key", "error"), cases(BAD_KEYS))
def test_key(tm, call, key, error):
    with pytest.raises(error, match=r"\bkey\b"):
        getattr(tm, call)(["e"], key)


@pytest.mark.parametrize("call", ["add_sets", "remove_sets"])
@pytest.mark.parametrize(("key", "error"), cases(BAD_KEYS))
def test_key_in_bulk(tm, call, key, error):
    with pytest.raises(error, match=r"\bkeys\b.*\brow 2\b"):
        getattr(tm, call)([["c"], ["d"], ["e"], ["e"]], [0, np.uint64(1), key, 2])


@pytest.mark.parametrize("call", ["add_sets", "remove_sets"])
@pytest.mark.parametrize(
    "keys", [None, 1, "1", b"1", {1: 1}, {1}, frozenset([1]), float("nan"), object()], ids=without_address
)
def test_keys_that_are_none(tm, call, keys):
    with pytest.raises(TypeError, match=r"\bkeys\b"):
        getattr(tm, call)([["e"]], keys)


@pytest.mark.parametrize("call", ["add_sets", "remove_sets"])
@pytest.mark.parametrize("rows", [list, iter, pa.array, lambda rows: pa.chunked_array([rows, rows[:0]])])
@pytest.mark.parametrize("keys", [list, iter, range, np.array, pa.array], ids=lambda keys: keys.__name__)
@pytest.mark.parametrize("count", [1, 3, 10_000])
def test_lengths_that_differ(tm, call, rows, keys, count):
    with pytest.raises(ValueError, match=r"\btags\b.*\bkeys\b|\bkeys\b.*\btags\b"):
        getattr(tm, call)(rows([["e"], ["c"]]), range(count) if keys is range else keys(range(count)))


@pytest.mark.parametrize(("rows", "keys"), [([["e"]], []), ([], [1]), ([[]], np.zeros(0, int)), ([], pa.array([1]))])
def test_lengths_that_differ_by_none(tm, rows, keys):
    for call in (tm.add_sets, tm.remove_sets):
        with pytest.raises(ValueError, match=r"\btags\b.*\bkeys\b"):
            call(rows, keys)


def test_bad_tags_and_bad_key(tm):
    for call in (tm.add_set, tm.remove_set):
        with pytest.raises((TypeError, ValueError)):
            call("e", -1)


def test_iterators_that_fail(tm):
    def tags():
        yield "e"
        raise RuntimeError("out of tags")

    for call in (lambda: tm.add_set(tags(), 1), lambda: tm.add_sets([["e"], tags()], [1, 2]), lambda: tm.match(tags())):
        with pytest.raises(RuntimeError, match="out of tags"):
            call()


class Level(IntEnum):
    LOW = 4


@pytest.mark.parametrize(
    "key", [np.uint8(4), np.int16(4), np.int64(4), np.uint64(4), Level.LOW], ids=lambda key: type(key).__name__
)
def test_other_integers_are_keys(layout, key):
    tm = TagMatch(layout=layout)
    tm.add_set(["a"], key)
    tm.add_sets([["a"], ["b"]], [5, key])
    tm.consolidate()
    assert dict(tm.explain(["a", "b"])) == {frozenset("a"): (4, 5), frozenset("b"): (4,)}
    assert {type(found) for found in tm.match(["a", "b"])} == {int}
    tm.remove_set(["a"], key)
    tm.consolidate()
    assert sorted(tm.match(["a", "b"])) == [4, 5]


def test_other_iterables_are_tags(tm):
    for tags in (
        ("ba", iter("ba")),
        ("ba", {"a": 1, "b": 2}.keys()),
        ("ba", np.array(["a", "b"])),
        ("ba", pa.array(["a", "b"])),
    ):
        assert sorted(tm.match(tags[1])) == [1, 2, 4]


# -- options ---------------------------------------------------------------------------------------------------------

BAD_OPTIONS = [
    ("layout", "fastest"), ("layout", ""), ("layout", "Rarest"), ("layout", None), ("layout", 1),
    ("exact", None), ("exact", "yes"), ("exact", 1),
    ("device", "tpu"), ("device", None), ("device", 0),
    ("threads", 0), ("threads", -1), ("threads", True), ("threads", 1.0), ("threads", "2"), ("threads", 10**9),
    ("max_partition_size", 0), ("max_partition_size", -1), ("max_partition_size", True),
    ("max_partition_size", 7.0), ("max_partition_size", None), ("max_partition_size", 2**64),
    ("batch_size", 0), ("batch_size", True), ("batch_size", 1.5), ("batch_size", None),
    ("flush_timeout", -1), ("flush_timeout", float("nan")), ("flush_timeout", "1"), ("flush_timeout", True),
    ("auto_reload", 0), ("auto_reload", -0.1), ("auto_reload", float("nan")), ("auto_reload", "1"),
    ("auto_reload", True),
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index on disk that no test changes."""
    path = tmp_path_factory.mktemp("saved") / "index"
    with TagMatch(path) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    return path


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS)
def test_options(saved, tmp_path, name, value):
    new = tmp_path / "new"
    ways = [TagMatch, lambda **option: TagMatch(new, **option)]
    if (name, value) not in (("layout", None), ("max_partition_size", None)):  # those of the index
        ways.append(lambda **option: TagMatch.open(saved, **option))
    for create in ways:
        with pytest.raises(TagMatchError, match=rf"\b{name}\b") as caught:
            create(**{name: value})
        assert isinstance(caught.value, TypeError | ValueError)
    assert not new.exists()


def test_unknown_options(saved):
    for create in (TagMatch, lambda **option: TagMatch.open(saved, **option)):
        with pytest.raises(TypeError, match="partitions"):
            create(partitions=3)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without a GPU")
def test_cuda_without_a_device(saved):
    for create in (TagMatch, lambda **option: TagMatch.open(saved, **option)):
        with pytest.raises(TagMatchError, match=r"(?i)cuda.* (no|not|without|missing|install)"):
            create(device="cuda")
    assert TagMatch.open(saved, device="auto").match(["a"]) == [1]


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [5, b"index", ["index"], float("nan")], ids=repr)
def test_path_of_another_type(path):
    for create in (TagMatch, TagMatch.open):
        with pytest.raises(TypeError, match=r"\bpath\b"):
            create(path)


def test_open_needs_a_path():
    with pytest.raises(TypeError, match=r"\bpath\b"):
        TagMatch.open(None)


def nothing(path: Path) -> None:
    """The path stays free."""


def folder_with_other_files(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


@pytest.mark.parametrize("make", [nothing, Path.mkdir, Path.touch, folder_with_other_files])
def test_open_where_there_is_no_index(tmp_path, make):
    path = tmp_path / "index"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(IndexNotFoundError, match=str(path)):
        TagMatch.open(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("make", [Path.touch, folder_with_other_files])
def test_create_where_something_else_is(tmp_path, make):
    path = tmp_path / "index"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TagMatchError, match=str(path)):
        TagMatch(path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "call", [TagMatch, TagMatch.open, lambda path: TagMatch().save(path)], ids=["new", "open", "save"]
)
def test_a_path_that_the_system_refuses(tmp_path, call):
    with pytest.raises(TagMatchError, match=r"x.*File name too long"):
        call(tmp_path / ("x" * 300))


def test_create_below_a_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(TagMatchError, match=str(file)):
        TagMatch(file / "index").consolidate()
    assert file.read_text() == "mine"


def test_changes_stay_staged_in_order_when_saving_fails(tmp_path, layout):
    path = tmp_path / "index"
    tm = TagMatch(path, layout=layout, durability="none")
    tm.add_set(["a"], 1)
    tm.consolidate()
    tm.add_sets([["a", "b"], ["b"]], [2, 3])
    tm.remove_set(["a"], 1)
    shutil.rmtree(path)
    path.write_text("in the way")
    with pytest.raises(TagMatchError, match=str(path)):
        tm.consolidate()
    assert tm.explain(["a", "b"]) == [(frozenset("a"), (1,))]
    assert path.read_text() == "in the way"
    tm.add_set(["a"], 1)
    tm.remove_set(["a", "b"], 2)
    path.unlink()
    tm.consolidate()
    assert sorted(tm.match(["a", "b"])) == sorted(TagMatch.open(path).match(["a", "b"])) == [1, 3]


# -- after close() ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    cases(
        {
            **{name: lambda tm, call=call: call(tm, ["a"]) for name, call in SINGLE_CALLS.items()},
            **{name: lambda tm, call=call: call(tm, [["a"]] * 3) for name, (_, call) in BULK_CALLS.items()},
            "consolidate": TagMatch.consolidate,
            "len": len,
            "iter": iter,
            "to_arrow": TagMatch.to_arrow,
            "stats": TagMatch.stats,
            "check": TagMatch.check,
            "with": TagMatch.__enter__,
        }
    ),
)
def test_closed(call: Callable[[TagMatch], object]):
    tm = TagMatch()
    tm.add_set(["a"], 1)
    tm.consolidate()
    tm.close()
    with pytest.raises(ClosedError, match="closed"):
        call(tm)


def test_close_twice():
    with TagMatch() as tm:
        tm.close()
    tm.close()
    assert "closed" in repr(tm)


def test_with_closes_after_an_error():
    with pytest.raises(KeyError), TagMatch() as tm:
        raise KeyError
    with pytest.raises(ClosedError):
        tm.match(["a"])
