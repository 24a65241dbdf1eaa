"""Every shape in which Arrow, NumPy and Python hold tags and keys."""

import itertools
from collections.abc import Callable

import numpy as np
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import assert_agree, assert_keys, index_of, loaded

from tagmatch import TagMatch
from tagmatch.model.errors import NullError

Rows = list[list[str]]

ROWS: Rows = [["b", "a"], [], ["日本語", "a", "a"], [""], ["ab", "é", "x" * 1_000, "a\0"], [], ["🙂", "", "b"], ["n"]]
STRINGS = pa.list_(pa.string())


class ArrayCapsule:
    """Anything that hands over an Arrow array by the C data interface."""

    def __init__(self, array: pa.Array) -> None:
        self.__arrow_c_array__ = array.__arrow_c_array__


class StreamCapsule:
    """Anything that hands over chunks by the C stream interface."""

    def __init__(self, chunks: pa.ChunkedArray) -> None:
        self.__arrow_c_stream__ = chunks.__arrow_c_stream__


def flat(rows: Rows) -> tuple[list[int], list[str]]:
    return list(itertools.accumulate(map(len, rows), initial=0)), list(itertools.chain.from_iterable(rows))


def lists_of(rows: Rows, encode: Callable[[pa.Array], pa.Array]) -> pa.ListArray:
    offsets, tags = flat(rows)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), encode(pa.array(tags, pa.string())))


def sliced(rows: Rows) -> pa.Array:
    return pa.array([["before"], None, *rows, None, ["after", None]], STRINGS).slice(2, len(rows))


def child_sliced(rows: Rows) -> pa.Array:
    return lists_of(rows, lambda tags: pa.array(["before", None, *tags.to_pylist(), "after"]).slice(2, len(tags)))


def offset_child(rows: Rows) -> pa.Array:
    """Offsets that start and end inside the strings."""
    offsets, tags = flat(rows)
    return pa.LargeListArray.from_arrays(
        pa.array([offset + 2 for offset in offsets], pa.int64()), pa.array(["before", None, *tags, None])
    )


def backward_views(rows: Rows, kind: type[pa.Array] = pa.ListViewArray) -> pa.Array:
    """Views of lists that are stored in the opposite order, after a tag that none of them views."""
    offsets, tags = flat(rows[::-1])
    width = pa.int32() if kind is pa.ListViewArray else pa.int64()
    return kind.from_arrays(
        pa.array([offset + 1 for offset in offsets[-2::-1]], width),
        pa.array(list(map(len, rows)), width),
        pa.array(["before", *tags], pa.string()),
    )


def with_empty_chunks(rows: Rows) -> pa.ChunkedArray:
    nothing, half = pa.array([], STRINGS), len(rows) // 2
    return pa.chunked_array(
        [nothing, pa.array(rows[:half], STRINGS), nothing, nothing, sliced(rows[half:]), nothing], STRINGS
    )


SHAPES: dict[str, Callable[[Rows], object]] = {
    "list": lambda rows: pa.array(rows, STRINGS),
    "large_list": lambda rows: pa.array(rows, pa.large_list(pa.string())),
    "large_string": lambda rows: pa.array(rows, pa.list_(pa.large_string())),
    "string_view": lambda rows: pa.array(rows, pa.list_(pa.string_view())),
    "large_list of string_view": lambda rows: pa.array(rows, pa.large_list(pa.string_view())),
    "list_view": lambda rows: pa.array(rows, pa.list_view(pa.string())),
    "large_list_view": lambda rows: pa.array(rows, pa.large_list_view(pa.large_string())),
    "backward views": backward_views,
    "backward large views": lambda rows: backward_views(rows, pa.LargeListViewArray),
    "sliced views": lambda rows: backward_views([["before"], *rows, ["after"]]).slice(1, len(rows)),
    "run-end encoded": lambda rows: lists_of(rows, pc.run_end_encode), "sliced": sliced, "child sliced": child_sliced,
    "offset child": offset_child,
    "not nullable": lambda rows: pa.array(rows, STRINGS).cast(pa.list_(pa.field("tag", pa.string(), nullable=False))),
    "one chunk per row": lambda rows: pa.chunked_array([pa.array([row], STRINGS) for row in rows], STRINGS),
    "empty chunks": with_empty_chunks, "array capsule": lambda rows: ArrayCapsule(sliced(rows)),
    "stream capsule": lambda rows: StreamCapsule(with_empty_chunks(rows)), "lists": list,
    "tuples": lambda rows: tuple(map(tuple, rows)), "sets": lambda rows: list(map(frozenset, rows)),
    "generators": lambda rows: (iter(row) for row in rows),
    "numpy rows": lambda rows: [np.array(row, object) for row in rows],
    "numpy of lists": lambda rows: np.array([*rows, None], object)[:-1],
    "arrow rows": lambda rows: [pa.array(row, pa.string()) for row in rows],
}  # fmt: skip


def assert_all_take(shape: Callable[[Rows], object], rows: Rows) -> None:
    """`add_sets`, `remove_sets` and `match_many` read these rows from this shape."""
    keys, everything = range(len(rows)), sorted({tag for row in rows for tag in row})
    oracle = Oracle()
    oracle.add_sets(rows, keys)
    oracle.consolidate()
    tm = index_of(shape(rows), keys)
    assert_agree(tm, oracle, [everything])
    assert_keys(tm.match_many(shape(rows)), [oracle.match(row) for row in rows])
    tm.add_set(["kept"], 7)
    tm.remove_sets(shape(rows), keys)
    tm.consolidate()
    assert tm.explain([*everything, "kept"]) == [(frozenset({"kept"}), (7,))]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_shapes(shape):
    for rows in (ROWS, [], [[]], [[], []], [["a"]]):
        assert_all_take(shape, rows)


@given(rows=st.lists(strategies.tag_sets, max_size=8), name=st.sampled_from(sorted(SHAPES)))
def test_shapes_of_any_rows(rows, name):
    assert_all_take(SHAPES[name], rows)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.large_string()], ids=str)
def test_fixed_size_lists(kind, size):
    rows, fixed = [[f"{row}{tag}" for tag in range(size)] for row in range(5)], pa.list_(kind, size)
    assert_all_take(lambda rows: pa.array(rows, fixed), rows)
    assert_all_take(lambda rows: pa.array([["-"] * size, *rows, None], fixed).slice(1, len(rows)), rows)


def test_empty_lists_of_null_type():
    for kind in (pa.list_(pa.null()), pa.large_list(pa.null()), pa.list_view(pa.null())):
        assert_all_take(lambda rows, kind=kind: pa.array(rows, kind), [[], [], []])
    for rows in (pa.array([]), pa.chunked_array([], STRINGS)):
        assert_all_take(lambda _, rows=rows: rows, [])


def test_arguments_are_copied():
    """What the caller does with its arrays afterwards changes nothing."""
    tags, keys = [["a"], ["b"]], np.array([1, 2])
    tm = TagMatch()
    tm.add_sets(tags, keys)
    tags[0].append("c")
    keys[:] = 9
    tm.consolidate()
    assert dict(tm.explain(["a", "b"])) == {frozenset("a"): (1,), frozenset("b"): (2,)}


def no_utf8(kind: pa.DataType) -> pa.Array:
    width = "int32" if pa.types.is_string(kind) else "int64"
    buffers = [None, pa.py_buffer(np.array([0, 1, 3], width)), pa.py_buffer(b"a\xff\xfe")]
    return pa.ListArray.from_arrays([0, 1, 2], pa.Array.from_buffers(kind, 2, buffers))


NO_UTF8 = [(no_utf8(kind), None) for kind in (pa.string(), pa.large_string())]
#: What is refused, and where the first null is
BAD_ROWS = [
    (pa.array([["a"], ["b"], None, []], STRINGS), 2), (pa.array([None, ["a"], None, ["a"]], STRINGS).slice(1), 1),
    (pa.array([[None], ["a"], [None]], STRINGS).slice(1), 1),
    (pa.chunked_array([[["a"], []], [], [["b"], None]], STRINGS), 3),
    (pa.chunked_array([[["a"], []], [["b"], [None]]], STRINGS), 3),
    (pa.array([["a"], ["b", None]], pa.list_(pa.string_view())), 1),
    (pa.array([["a"], ["b"], None], pa.list_view(pa.string())), 2),
    (pa.ListViewArray.from_arrays(pa.array([2, 1, 0]), pa.array([1, 1, 1]), pa.array([None, "a", "b"])), 2),
    (pa.array([["a", "b"], None], pa.list_(pa.string(), 2)), 1),
    (pa.array([["a", "b"], ["a", None]], pa.list_(pa.string(), 2)), 1),
    (pa.ListArray.from_arrays([0, 1, 2], pa.DictionaryArray.from_arrays(pa.array([0, None]), ["a"])), 1),
    (pa.ListArray.from_arrays([0, 1, 2], pa.DictionaryArray.from_arrays([1, 0], [None, "a"])), 1),
    (pa.ListArray.from_arrays([0, 1, 3], pc.run_end_encode(pa.array(["a", "a", None]))), 1),
    (pa.array([[], [None]], pa.list_(pa.null())), 1), (pa.array([None, None]), 0),
    (StreamCapsule(pa.chunked_array([[["a"]], [None]], STRINGS)), 1), ([["a"], [], None], 2),
    ([["a"], [], ["b", None]], 2),
    *((pa.array([[b"ab"]], pa.list_(kind)), None)
      for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2))),
    *((pa.ListArray.from_arrays([0, 1], pa.array([tag]).dictionary_encode()), None) for tag in (b"a", 1)),
    *((pa.array([row]), None) for row in ([1], [1.5], [["a"]], "a", 1, {"tags": ["a"]})),
    (pa.array(["a"]).dictionary_encode(), None), (pa.chunked_array([[[b"a"]]]), None), (np.array(["a"]), None),
    (np.array([[1]]), None),
    # A column `tags` and columns of attributes: messages, but no sets
    (pa.table({"tags": [["a"]]}), None), (pa.record_batch({"tags": [["a"]]}), None),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "row"), [*BAD_ROWS, *NO_UTF8], ids=range(len(BAD_ROWS) + len(NO_UTF8)))
def test_rows_that_are_refused(rows, row):
    tm, oracle = loaded([(["a"], 1)])
    where, count = f".*\\brow {row}\\b" if row is not None else "", len(rows) if hasattr(rows, "__len__") else 2
    for call in (tm.add_sets, tm.remove_sets):
        with pytest.raises((TypeError, ValueError), match=rf"\btags\b{where}"):
            call(rows, range(count))
    if isinstance(rows, pa.Table | pa.RecordBatch):
        assert tm.match_many(rows).to_pylist() == [[1]]
    elif all(rows is not bad for bad, _ in NO_UTF8):
        with pytest.raises(TypeError, match=rf"\bqueries\b{where}"):
            tm.match_many(rows)
    tm.consolidate()
    assert_agree(tm, oracle, [["a"]])


KEYS = [0, 1, 5, 100]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]

KEY_SHAPES: dict[str, Callable[[list[int]], object]] = {
    **{f"arrow {name}": lambda keys, name=name: pa.array(keys, name) for name in INTEGERS},
    **{f"numpy {name}": lambda keys, name=name: np.array(keys, name) for name in INTEGERS},
    "sliced": lambda keys: pa.array([-1, None, *keys, -1]).slice(2, len(keys)),
    "chunked": lambda keys: pa.chunked_array([keys[:1], [], keys[1:]], pa.int64()),
    "array capsule": lambda keys: ArrayCapsule(pa.array(keys)),
    "stream capsule": lambda keys: StreamCapsule(pa.chunked_array([keys[:3], keys[3:], []])),
    "big-endian": lambda keys: np.array(keys, ">u8"), "strided": lambda keys: np.repeat(np.array(keys), 2)[::2],
    "reversed": lambda keys: np.array(keys[::-1])[::-1], "numpy objects": lambda keys: np.array(keys, object),
    "list": list, "tuple": tuple, "generator": iter, "numpy integers": lambda keys: [np.uint8(key) for key in keys],
}  # fmt: skip


@pytest.mark.parametrize("shape", KEY_SHAPES.values(), ids=KEY_SHAPES)
def test_key_shapes(shape):
    rows = pa.chunked_array([[["a"], ["b"]], [["c"]], [["d"]]], STRINGS)
    tm, oracle = loaded(zip(rows.to_pylist(), KEYS, strict=True))
    assert_agree(index_of(rows, shape(KEYS)), oracle, [list("abcd")])
    tm.remove_sets(rows, shape(KEYS))
    tm.consolidate()
    assert len(tm) == 0


def test_ranges_of_keys_and_greatest_keys():
    great = pa.array(strategies.BOUNDARY_KEYS, pa.uint64())
    for keys in (range(4), range(6, -2, -2), range(2**64 - 4, 2**64), great, great.to_numpy()):
        with index_of([["a"]] * len(keys), keys) as tm:
            assert sorted(tm.match(["a"])) == sorted(keys.tolist() if hasattr(keys, "tolist") else keys)


BAD_KEYS = [
    (pa.array([None, 1, 2, None, 4, 5]).slice(1, 4), TypeError, 2), (pa.nulls(4), TypeError, 0),
    (pa.chunked_array([[1, 2], [], [3, None]]), TypeError, 3), ([1, 2, None, 4], TypeError, 2),
    (pa.chunked_array([[1, 2, 3], [-4]]), ValueError, 3), (np.array([1, 2, 3, -4], np.int8), ValueError, 3),
    (np.array([1, 2, -3, 4], ">i8"), ValueError, 2), (range(2, -2, -1), ValueError, 3),
    (np.array([1, 2, 2**64, 4], object), ValueError, 2), (range(2**64 - 2, 2**64 + 2), ValueError, None),
    *((pa.array([key] * 4), TypeError, None) for key in (1.0, True, "1", [1])),
    *((pa.array([1] * 4, kind), TypeError, None) for kind in (pa.decimal128(5), pa.timestamp("s"))),
    *((np.array(keys), TypeError, None) for keys in ([1.0] * 4, [True] * 4, ["1"] * 4, [[1]] * 4, 1)),
    (np.array([1] * 4, "datetime64[s]"), TypeError, None), (pa.table({"key": [1] * 4}), TypeError, None),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "error", "row"), BAD_KEYS, ids=range(len(BAD_KEYS)))
def test_keys_that_are_refused(keys, error, row):
    with TagMatch() as tm:
        for call in (tm.add_sets, tm.remove_sets):
            with pytest.raises(error, match=r"\bkeys\b" + ("" if row is None else rf".*\brow {row}\b")):
                call([["a"]] * 4, keys)
        assert tm.stats()["staged"] == 0


@pytest.mark.parametrize("kind", [polars.String, polars.Categorical, polars.Enum(["a", "b", "é", "unused"])], ids=str)
def test_lists_of_polars(kind):
    rows = [["a"], ["b", "é"], [], ["a", "a"]]
    lists = polars.Series("tags", rows, dtype=polars.List(kind))
    with TagMatch() as tm:
        tm.add_sets(lists, [1, 2, 3, 4])
        tm.add_sets(lists.slice(1, 2), [5, 6])
        tm.consolidate()
        assert sorted(tm.match(["a", "b", "é"])) == [1, 2, 3, 4, 5, 6]
        found = [sorted(keys) for keys in tm.match_many(lists).to_pylist()]
        assert found == [[1, 3, 4, 6], [2, 3, 5, 6], [3, 6], [1, 3, 4, 6]]
        with pytest.raises(NullError, match="row 1"):
            tm.add_sets(polars.Series("tags", [["a"], ["b", None]], dtype=polars.List(kind)), [1, 2])
