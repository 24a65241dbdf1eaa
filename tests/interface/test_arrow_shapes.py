"""Every shape in which Arrow, NumPy and Python hold tags and keys; strings of dictionaries are looked up once."""

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

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
from support.dictionaries import LISTS, encoded
from support.dictionaries import STRINGS as STRING_TYPES

from tagmatch import TagMatch
from tagmatch.model.errors import NullError
from tagmatch.model.kernels import tag_table
from tagmatch.pipeline import tags as preprocess

Rows = list[list[str]]

ROWS: Rows = [["b", "a"], [], ["日本語", "a", "a"], [""], ["ab", "é", "x" * 1_000, "a\0"], [], ["🙂", "", "b"], ["n"]]
STRINGS = pa.list_(pa.string())


def as_stream(chunks: pa.ChunkedArray) -> object:
    """Anything that hands over chunks by the C stream interface; `as_array`: an array by the C data interface."""
    return SimpleNamespace(__arrow_c_stream__=chunks.__arrow_c_stream__)


def as_array(array: pa.Array) -> object:
    return SimpleNamespace(__arrow_c_array__=array.__arrow_c_array__)


def sliced(rows: Rows) -> pa.Array:
    return pa.array([["before"], None, *rows, None, ["after", None]], STRINGS).slice(2, len(rows))


def with_empty_chunks(rows: Rows) -> pa.ChunkedArray:
    nothing, half = pa.array([], STRINGS), len(rows) // 2
    return pa.chunked_array(
        [nothing, pa.array(rows[:half], STRINGS), nothing, nothing, sliced(rows[half:]), nothing], STRINGS
    )


#: How tags lie in lists
ENCODED: dict[str, Callable[[list[str]], pa.Array]] = {
    **{str(kind): lambda tags, kind=kind: pa.array(tags, kind) for kind in STRING_TYPES},
    "runs": lambda tags: pc.run_end_encode(pa.array(tags, pa.string())),
    "others": lambda tags: pa.array(["before", None, *tags, "after"]).slice(2, len(tags)),
}
ARROW = [*itertools.product((lists for lists in LISTS if not lists.startswith("fixed")), ENCODED)]

SHAPES: dict[str, Callable[[Rows], object]] = {
    **{f"{lists} of {tags}": partial(LISTS[lists], encode=ENCODED[tags]) for lists, tags in ARROW},
    **{f"cut {lists} of {tags}": lambda rows, lists=lists, tags=tags: (
        LISTS[lists]([["-"], *rows, ["-"]], ENCODED[tags]).slice(1, len(rows))
    ) for lists, tags in ARROW},
    "sliced": sliced,
    "not nullable": lambda rows: pa.array(rows, STRINGS).cast(pa.list_(pa.field("tag", pa.string(), nullable=False))),
    "one chunk per row": lambda rows: pa.chunked_array([pa.array([row], STRINGS) for row in rows], STRINGS),
    "empty chunks": with_empty_chunks, "array capsule": lambda rows: as_array(sliced(rows)),
    "stream capsule": lambda rows: as_stream(with_empty_chunks(rows)), "lists": list,
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
    (as_stream(pa.chunked_array([[["a"]], [None]], STRINGS)), 1), ([["a"], [], None], 2),
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
    "array capsule": lambda keys: as_array(pa.array(keys)),
    "stream capsule": lambda keys: as_stream(pa.chunked_array([keys[:3], keys[3:], []])),
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


# -- dictionaries ------------------------------------------------------------------------------------------------------

TAGS = [f"t{i}" for i in range(300)]


@given(data=st.data(), layout=strategies.layouts, threads=st.sampled_from([1, 3]))
def test_as_plain_strings(data, layout, threads):
    sets, stored = data.draw(encoded(data.draw(st.lists(strategies.tag_sets, max_size=8))))
    queries, asked = data.draw(encoded(data.draw(strategies.query_lists)))
    oracle = Oracle()
    oracle.add_sets(sets, range(len(sets)))
    oracle.consolidate()
    with index_of(stored, range(len(sets)), layout=layout, threads=threads) as tm:
        answers = tm.match_many(asked)
        assert_keys(answers, [oracle.match(query) for query in queries])
        assert answers.offsets.equals(tm.match_many(queries).offsets)
        assert_agree(tm, oracle, queries)
        tm.remove_sets(stored, range(len(sets)))
        tm.consolidate()
        assert len(tm) == 0


def rows_of_tags(count: int, dictionary: pa.Array, begin: int = 0) -> pa.ListArray:
    indices = (np.arange(begin, begin + 3 * count) * 7 % len(dictionary)).astype(np.int32)
    tags = pa.DictionaryArray.from_arrays(indices, dictionary)
    return pa.ListArray.from_arrays(np.arange(0, 3 * count + 1, 3, dtype=np.int32), tags)


def strings_given_to(monkeypatch: pytest.MonkeyPatch, module: object, name: str, at: int = 0) -> list[int]:
    """How many strings each call of a function gets from now on: as many as the argument at this place has."""
    counts, function = [], getattr(module, name)

    def counting(*arguments, **options):
        counts.append(len(arguments[at]))
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, counting)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize(("counts", "strings"), [([5_000, 50], len(TAGS)), ([99], 3 * 99)])
@pytest.mark.parametrize("piece", [16_384, 7])
def test_each_string_of_a_dictionary_is_looked_up_once(monkeypatch, layout, piece, counts, strings):
    """Whatever the number of packets and threads, in two chunks; or each tag is, where tags are fewer than strings."""
    tm, oracle = loaded([([tag], i) for i, tag in enumerate(TAGS)], layout=layout, threads=4)
    dictionary = pa.array(TAGS)
    queries = pa.chunked_array([rows_of_tags(count, dictionary) for count in counts])
    monkeypatch.setattr(preprocess, "_STRINGS_A_PIECE", piece)
    looked_up = strings_given_to(monkeypatch, preprocess, "look_up", -1)
    answers = tm.match_many(queries)
    assert sum(looked_up) == strings
    assert_keys(answers, [oracle.match(query) for query in queries.to_pylist()])


def test_each_string_of_a_dictionary_is_numbered_once(monkeypatch):
    dictionary = pa.array(TAGS)
    sets = pa.chunked_array([rows_of_tags(100_000, dictionary), rows_of_tags(50, dictionary, 9)])
    hashed = strings_given_to(monkeypatch, tag_table, "hash_strings")
    with TagMatch() as tm:
        tm.add_sets(sets, np.arange(len(sets)))
        assert sum(hashed) == len(TAGS)
        tm.consolidate()
        assert tm.stats()["keys"] == len(sets)


def with_indices(indices: list[int], kind: str) -> pa.ListArray:
    """A row for each index into a dictionary of three strings, which Arrow does not check."""
    values = pa.py_buffer(np.array(indices, kind))
    dictionary = pa.dictionary(pa.type_for_alias(kind), pa.string())
    tags = pa.DictionaryArray.from_buffers(dictionary, len(indices), [None, values], pa.array(["a", "b", "c"]))
    return pa.ListArray.from_arrays(np.arange(len(indices) + 1, dtype=np.int32), tags)


@pytest.mark.parametrize("kind", ["int8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("wrong", [3, 100, -1])
def test_indices_beyond_the_dictionary(kind, wrong):
    """Sets with them are refused; queries match as if they had another tag, or are refused."""
    if wrong < 0 and kind == "uint32":
        wrong = 2**32 - 1
    tm, oracle = loaded([([], 0), (["a"], 1), (["b"], 2)])
    rows = with_indices([0, 1, wrong, 2], kind)
    for call in (tm.add_sets, tm.remove_sets):
        with pytest.raises(ValueError, match=rf"\btags: row 2 has the dictionary index {wrong}, .* 3 strings"):
            call(rows, range(4))
    assert_keys(tm.match_many(rows), [[0, 1], [0, 2], [0], [0]])
    with pytest.raises(ValueError, match=rf"\bqueries: row 1 has the dictionary index {wrong}, .* 3 strings"):
        tm.match_many(rows.slice(1, 2))
    tm.consolidate()
    assert_agree(tm, oracle, [["a"], []])


def test_strings_that_are_no_utf8_matter_where_they_are_used():
    bad = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 3], np.int32)), pa.py_buffer(b"a\xff\xfe")]
    )
    tags = pa.DictionaryArray.from_arrays(pa.array([0, 0, 0, 1], pa.int32()), bad)
    rows = pa.ListArray.from_arrays([0, 1, 3, 4], tags)
    with TagMatch() as tm:
        with pytest.raises(ValueError, match=r"\btags: rows 0 to 2: .*UTF8"):
            tm.add_sets(rows, range(3))
        tm.add_sets(rows.slice(0, 2), range(2))
        tm.consolidate()
        assert tm.explain(["a"]) == [(frozenset("a"), (0, 1))]


def test_dictionaries_of_one_length():
    """Chunks whose dictionaries differ in nothing but their strings, or in where in one array they lie."""
    tags = pa.array(["a", "b", "c", "d", "e", "f"])
    chunks = [rows_of_tags(2, dictionary) for dictionary in (tags, tags[::-1], tags.slice(0, 3), tags.slice(3))]
    rows = pa.chunked_array(chunks)
    plain = rows.to_pylist()
    tm, oracle = loaded([(row, i) for i, row in enumerate(plain)])
    assert_keys(tm.match_many(rows), [oracle.match(row) for row in plain])
    with index_of(rows, range(len(rows))) as same:
        assert_agree(same, oracle, plain)
