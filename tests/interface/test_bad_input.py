"""What cannot be used is refused with an error that names it, and changes nothing."""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.agreement import index_of

from tagmatch import ClosedError, IndexNotFoundError, InvalidValueError, TagMatch, TagMatchError

STORED = {frozenset("ab"): (1, 2), frozenset("c"): (3,), frozenset(): (4,)}
CONSOLIDATED = {frozenset("ab"): (2,), frozenset("c"): (3, 5), frozenset("d"): (6,)}
EVERYTHING = list("abcde")

BAD_TAGS: list[tuple[Any, type[Exception]]] = [(wrong, TypeError) for wrong in (
    "ab", "a", "", np.str_("ab"), b"ab", b"", bytearray(b"ab"), memoryview(b"ab"), {"a": 9}, {}, None, float("nan"), 5,
    object(), ["a", 5], ["a", None], ["a", float("nan")], ["a", b"b"], [["a", "b"]], {("a", "b")}, np.array([1, 2]),
    pa.array([1, 2]), pa.array(["a", None]),
)]  # fmt: skip
BAD_TAGS += [(["a", "\ud800"], ValueError), (["\udc00\ud800"], ValueError)]

BAD_KEYS: list[tuple[Any, type[Exception]]] = [(wrong, TypeError) for wrong in (
    None, True, False, np.bool_(True), 1.0, float("nan"), np.float64(1), np.float32("nan"), Decimal(1), 1 + 0j, "1",
    b"1", [1], np.array([1]),
)]  # fmt: skip
BAD_KEYS += [(wrong, ValueError) for wrong in (-1, -(2**64), np.int8(-1), 2**64, 10**100)]

SINGLE_QUERIES = {
    "match": lambda tm, tags: tm.match(tags), "match_unique": lambda tm, tags: tm.match_unique(tags),
    "submit": lambda tm, tags: tm.submit(tags).result(timeout=60),
    "submit unique": lambda tm, tags: tm.submit(tags, unique=True).result(timeout=60),
    "explain": lambda tm, tags: tm.explain(tags), "in": lambda tm, tags: tags in tm,
}  # fmt: skip
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


def without_address(value: Any) -> str:
    """The same in every process that shares the tests."""
    return re.sub(" at 0x[0-9a-f]+", "", ascii(value))


@pytest.fixture
def tm() -> Iterator[TagMatch]:
    """An index with staged changes; when the test ends, both must be as they were."""
    with index_of([["a", "b"], ["b", "a"], ["c"], []], [1, 2, 3, 4]) as tm:
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


@pytest.mark.parametrize(("tags", "error"), BAD_TAGS, ids=without_address)
def test_tags(tm, tags, error):
    for call in SINGLE_CALLS.values():
        with pytest.raises(error, match=r"\btags\b"):
            call(tm, tags)
    for name, call in BULK_CALLS.values():
        with pytest.raises(error, match=rf"\b{name}\b.*\brow 1\b"):
            call(tm, [["a"], tags, ["b"]])


@pytest.mark.parametrize(("key", "error"), BAD_KEYS, ids=without_address)
def test_key(tm, key, error):
    for call in (tm.add_set, tm.remove_set):
        with pytest.raises(error, match=r"\bkey\b"):
            call(["e"], key)
    for call in (tm.add_sets, tm.remove_sets):
        with pytest.raises(error, match=r"\bkeys\b.*\brow 2\b"):
            call([["c"], ["d"], ["e"], ["e"]], [0, np.uint64(1), key, 2])


def test_rows_and_keys_that_are_none(tm):
    for rows in (None, "abc", b"abc", 5, float("nan"), object(), {"a": ["b"]}, {("a",)}, ["a", "b", "c"]):
        for name, call in BULK_CALLS.values():
            with pytest.raises(TypeError, match=rf"\b{name}\b"):
                call(tm, rows)
    for keys in (None, 1, "1", b"1", {1: 1}, {1}, frozenset([1]), float("nan"), object()):
        for call in (tm.add_sets, tm.remove_sets):
            with pytest.raises(TypeError, match=r"\bkeys\b"):
                call([["e"]], keys)


@pytest.mark.parametrize("rows", [list, iter, pa.array, lambda rows: pa.chunked_array([rows, rows[:0]])])
@pytest.mark.parametrize("keys", [list, iter, range, np.array, pa.array], ids=lambda keys: keys.__name__)
def test_lengths_that_differ(tm, rows, keys):
    def given():
        for count in (1, 3, 10_000):
            yield rows([["e"], ["c"]]), range(count) if keys is range else keys(range(count))
        yield from (([["e"]], []), ([], [1]), ([[]], np.zeros(0, int)), ([], pa.array([1])))

    for call in (tm.add_sets, tm.remove_sets):
        for some, others in given():
            with pytest.raises(ValueError, match=r"\btags\b.*\bkeys\b|\bkeys\b.*\btags\b"):
                call(some, others)


def test_iterators_that_fail(tm):
    def tags():
        yield "e"
        raise RuntimeError("out of tags")

    for call in (lambda: tm.add_set(tags(), 1), lambda: tm.add_sets([["e"], tags()], [1, 2]), lambda: tm.match(tags())):
        with pytest.raises(RuntimeError, match="out of tags"):
            call()


Level = IntEnum("Level", {"LOW": 4})


def test_other_integers_are_keys_and_other_iterables_tags(tm):
    for key in (np.uint8(4), np.int16(4), np.int64(4), np.uint64(4), Level.LOW):
        with index_of([["a"], ["b"]], [5, key]) as other:
            assert other.remove_set(["a"], 5) == other.add_set(["a"], key) == 1
            other.consolidate()
            assert [type(found) for found in other.match(["a", "b"])] == [int, int]
    for tags in (iter("ba"), {"a": 1, "b": 2}.keys(), np.array(["a", "b"]), pa.array(["a", "b"])):
        assert sorted(tm.match(tags)) == [1, 2, 4]


WAYS = (TagMatch, TagMatch.open)

BAD_OPTIONS = {
    "layout": ["fastest", "", "Rarest", None, 1], "exact": [None, "yes", 1], "device": ["tpu", None, 0],
    "threads": [0, -1, True, 1.0, "2", 10**9], "max_partition_size": [0, -1, True, 7.0, None, 2**64],
    "batch_size": [0, True, 1.5, None], "flush_timeout": [-1, float("nan"), "1", True],
    "auto_reload": [0, -0.1, float("nan"), "1", True], "key_type": ["str", str, 1], "durability": ["always", 1],
    "plane": [1], "keep_snapshots": ["1", True, -1], "partitions": [3],
}  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "index"
    index_of([["a"]], [1], path=path).close()
    return path


def test_options(saved, tmp_path):
    new = tmp_path / "new"
    for name, value in ((name, value) for name, values in BAD_OPTIONS.items() for value in values):
        ways = [TagMatch, partial(TagMatch, new)]
        # Those of the index, and one for who changes it
        if (name, value) not in (("layout", None), ("max_partition_size", None)) and name != "keep_snapshots":
            ways.append(partial(TagMatch.open, saved))
        for create in ways:
            with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b") as caught:
                create(**{name: value})
            assert isinstance(caught.value, TagMatchError) or name == "partitions"
    assert not new.exists()


def test_in_memory_there_is_nothing_to_reload_or_to_save():
    with TagMatch() as tm:
        with pytest.raises(InvalidValueError, match="in memory only"):
            tm.reload()
        with pytest.raises(InvalidValueError, match="no folder to save positions to"):
            tm.save_positions()
    with pytest.raises(InvalidValueError, match="auto_reload needs a path"):
        TagMatch(auto_reload=1)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="needs a machine without a GPU")
def test_cuda_without_a_device(saved):
    for create in (TagMatch, partial(TagMatch.open, saved)):
        with pytest.raises(TagMatchError, match=r"(?i)cuda.* (no|not|without|missing|install)"):
            create(device="cuda")
    assert TagMatch.open(saved, device="auto").match(["a"]) == [1]


def folder_with_other_files(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    ("make", "create", "error"),
    [
        (Path, TagMatch.open, IndexNotFoundError("no such folder")),
        (Path.mkdir, TagMatch.open, IndexNotFoundError("it has no MANIFEST")),
        (Path.touch, TagMatch.open, IndexNotFoundError("it is a file")),
        (folder_with_other_files, TagMatch.open, IndexNotFoundError("it has no MANIFEST")),
        (Path.touch, TagMatch, TagMatchError("is a file")),
        (folder_with_other_files, TagMatch, TagMatchError("other files")),
    ],
)
def test_where_there_is_no_index(tmp_path, path, make, create, error):
    """Nothing, or something else, which stays as it is."""
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(type(error), match=f"{path}.*{error}"):
        create(path)
    if path.is_file():
        with pytest.raises(TagMatchError, match=str(path)):
            TagMatch(path / "index").consolidate()
    assert sorted(tmp_path.rglob("*")) == before


def test_paths_that_cannot_be_used(tmp_path):
    for create in WAYS:
        for path in (5, b"index", ["index"], float("nan"), *([None] if create == TagMatch.open else [])):
            with pytest.raises(TypeError, match=r"\bpath\b"):
                create(path)
    for call in (*WAYS, TagMatch().save):
        with pytest.raises(TagMatchError, match=r"x.*File name too long"):
            call(tmp_path / ("x" * 300))


def test_closed():
    calls: list[Callable[[TagMatch], object]] = [
        *(lambda tm, call=call: call(tm, ["a"]) for call in SINGLE_CALLS.values()),
        *(lambda tm, call=call: call(tm, [["a"]] * 3) for _, call in BULK_CALLS.values()),
        TagMatch.consolidate, len, iter, TagMatch.to_arrow, TagMatch.stats, TagMatch.check, TagMatch.__enter__,
    ]  # fmt: skip
    with pytest.raises(KeyError), TagMatch() as tm:
        raise KeyError
    tm.close()
    assert "closed" in repr(tm)
    for call in calls:
        with pytest.raises(ClosedError, match="closed"):
            call(tm)
