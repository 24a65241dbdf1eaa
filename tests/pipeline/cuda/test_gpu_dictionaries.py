"""Tags in dictionaries are looked up once on a device, and packets of many threads share the result."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agreement import assert_keys, loaded
from support.dictionaries import encoded

from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.cuda import pairs
from tagmatch.pipeline.cuda.pairs import CudaTagIndex
from tagmatch.pipeline.segment import PacketSize

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TAGS = [f"t{i}" for i in range(12)]
SETS = [[], ["t0"], ["t0", "t1"], ["t2", "t5"], ["t3"], ["t11", "t1", "t2"], ["é", "t3"]]

#: A query of `t0`, and one of tags with indices that no dictionary has
_INDICES = pa.py_buffer(np.array([0, -1, 1], np.int32))
_TYPE = pa.dictionary(pa.int32(), pa.string())
BEYOND = pa.ListArray.from_arrays(
    [0, 1, 3], pa.DictionaryArray.from_buffers(_TYPE, 3, [None, _INDICES], pa.array(["t0"]))
)

few_tags = st.lists(st.sampled_from([*TAGS, "unknown", "é"]), max_size=6)


@pytest.fixture
def small_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_matcher, "_PACKET_SIZE", PacketSize(queries=2, tags=9, fewest=1, at_once=3))
    monkeypatch.setattr(pairs, "_STRINGS_A_PIECE", 4)


def encoded_queries(offsets: Any) -> pa.Array:
    """Queries with one dictionary, in which a tag is twice and not all are stored, from place 1 on."""
    rng = random.Random(7)
    dictionary = pa.array([*TAGS, "unknown", "t1"])
    rows = [rng.sample(range(len(dictionary)), rng.randint(0, 5)) for _ in range(13)]
    indices = pa.array([0, *(index for row in rows for index in row)], pa.int32())
    ends = np.cumsum([1, *map(len, rows)]).astype(offsets)
    lists = pa.ListArray if offsets == np.int32 else pa.LargeListArray
    return lists.from_arrays(pa.array(ends), pa.DictionaryArray.from_arrays(indices, dictionary))


@pytest.mark.usefixtures("small_packets")
@pytest.mark.parametrize("offsets", [np.int32, np.int64])
def test_each_string_is_looked_up_once(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], offsets: Any) -> None:
    tm, oracle = loaded([(tags, key) for key, tags in enumerate(SETS)], **engine)
    strings, look_up = [], CudaTagIndex._look_up

    def counting(index: Any, tags: Any, first: int, last: int, *others: Any) -> None:
        strings.append(last - first)
        look_up(index, tags, first, last, *others)

    monkeypatch.setattr(CudaTagIndex, "_look_up", counting)
    queries = encoded_queries(offsets)
    answers = tm.match_many(pa.chunked_array([queries, queries.slice(3, 5)]))
    expected = [oracle.match(query) for query in queries.to_pylist()]
    assert_keys(answers, [*expected, *expected[3:8]])
    assert sum(strings) == len(TAGS) + 2
    assert len(strings) > 1
    assert_keys(tm.match_many(BEYOND), [[0, 1], [0]])
    assert tm.stats()["device"] == "cuda"
    tm.close()


@pytest.mark.usefixtures("small_packets")
@given(data=st.data())
def test_any_dictionaries(engine: dict[str, Any], data: st.DataObject) -> None:
    tm, oracle = loaded([(tags, key) for key, tags in enumerate(SETS)], **engine)
    queries, asked = data.draw(encoded(data.draw(st.lists(few_tags, max_size=5))))
    assert_keys(tm.match_many(asked), [oracle.match(query) for query in queries])
    tm.close()
