"""Tags in dictionaries are the tags that they stand for, and each is looked up once."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support import strategies
from support.agreement import assert_agree, assert_keys, index_of, loaded
from support.dictionaries import encoded

from tagmatch import TagMatch
from tagmatch.model.kernels import tag_table
from tagmatch.pipeline.cpu import preprocess

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


def strings_given_to(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[int]:
    """How many strings each call of a function gets from now on."""
    counts, function = [], getattr(module, name)

    def counting(*arguments, **options):
        counts.append(len(arguments[0]))
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
    looked_up = strings_given_to(monkeypatch, preprocess, "find_all")
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
