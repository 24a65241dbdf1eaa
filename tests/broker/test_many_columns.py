"""Tables of very many columns, on every way in: the work grows as they do, and the service has a bound.

With work that grows as the square of the columns, these would take minutes to hours.
"""

from __future__ import annotations

import contextlib
import json

import pyarrow as pa
import pytest
from support.command import done, from_json_lines
from support.command import tagmatch as command

import tagmatch
from tagmatch import TagMatch
from tagmatch.broker.messages import MAX_FIELDS, check_schema, messages_of
from tagmatch.broker.running import serving
from tagmatch.broker.wire import MAX_JSON, MatchOptions
from tagmatch.model.errors import InvalidValueError

_MANY = 100_000
_ONE = pa.array([1], pa.int8())


@pytest.fixture(scope="module")
def index():
    with TagMatch(device="cpu") as tm:
        tm.add_set([], 7, where="c1 = 1")
        tm.consolidate()
        yield tm


def _batch(names: list[str], column: pa.Array = _ONE) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column] * len(names), names=names)


def _names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def test_many_attributes_match(index):
    assert index.match_many(_batch(_names(_MANY))).to_pylist() == [[7]]


def test_a_name_that_repeats_among_many(index):
    with pytest.raises(InvalidValueError, match="one column 'c9', not 2"):
        index.match_many(_batch([*_names(_MANY), "c9"]))


def test_attributes_as_a_struct_of_many_fields(index):
    names = _names(_MANY)
    struct = pa.StructArray.from_arrays([_ONE] * len(names), names=names)
    other = pa.RecordBatch.from_arrays([struct, _ONE], names=["attributes", "x"])
    assert index.match_many(other).to_pylist() == [[7]]
    clash = pa.RecordBatch.from_arrays([struct, _ONE], names=["attributes", "c9"])
    with pytest.raises(InvalidValueError, match="'c9'"):
        index.match_many(clash)


def test_the_command_reads_many_columns(tmp_path):
    names = _names(5_000)
    queries, index = tmp_path / "queries.csv", tmp_path / "x.index"
    queries.write_text("\n".join([",".join(["tags", *names]), ",".join(["a", *["1"] * len(names)])]))
    sets = tmp_path / "sets.jsonl"
    sets.write_text(json.dumps({"tags": ["a"], "key": 7, "where": "c1 = 1", **dict.fromkeys(names, 1)}))
    done("build", sets, index)
    (answer,) = from_json_lines(command("match", index, queries, "--attributes", "*"))
    assert answer["keys"] == [7]


_INT = pa.int8()
_WIDE = [
    pa.schema([(name, _INT) for name in _names(MAX_FIELDS + 1)]),
    pa.schema([("attributes", pa.struct([(name, _INT) for name in _names(MAX_FIELDS)]))]),
    pa.schema([("x", pa.dictionary(_INT, pa.list_(pa.struct([(name, _INT) for name in _names(MAX_FIELDS)]))))]),
    pa.schema([("x", pa.opaque(pa.struct([(name, _INT) for name in _names(MAX_FIELDS)]), "a", "b"))]),
]


@pytest.mark.parametrize("schema", _WIDE)
def test_a_stream_has_a_bound(schema):
    with pytest.raises(InvalidValueError, match="at most 4,096 columns"):
        check_schema(schema)


def test_attributes_of_one_message_as_json_have_a_bound():
    """As nothing else goes on while JSON is read."""
    longest = json.dumps({"a": "x" * (MAX_JSON - 10)})
    for text, error in ((longest, None), (longest + "  ", r"row 1 must have at most 1,048,576 bytes, not 1,048,57.")):
        batch = pa.record_batch({"attributes": ["{}", text]})
        with pytest.raises(InvalidValueError, match=error) if error else contextlib.nullcontext():
            messages_of(batch, MatchOptions(), 0.0)


def test_the_service_has_a_bound(index):
    with serving(index) as service, tagmatch.connect(service.url) as client:
        assert client.match_many(_batch(_names(MAX_FIELDS))).to_pylist() == [[7]]
        for call in (client.match_many, client.publish):
            with pytest.raises(InvalidValueError, match="at most 4,096 columns"):
                call(_batch(_names(MAX_FIELDS + 1)))
