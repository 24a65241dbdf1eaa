"""Tables of very many columns, on every way in: the work grows as they do, and the service has a bound.

With work that grows as the square of the columns, these would take minutes to hours.
"""

import contextlib
import json

import pyarrow as pa
import pytest
from support.agreement import index_of
from support.command import done, from_json_lines
from support.command import tagmatch as command

import tagmatch
from tagmatch.broker.messages import MAX_FIELDS, check_schema, messages_of
from tagmatch.broker.running import serving
from tagmatch.broker.wire import MAX_JSON, MatchOptions
from tagmatch.model.errors import InvalidValueError

_INT, _ONE = pa.int8(), pa.array([1], pa.int8())


def _names(count: int) -> list[str]:
    return [f"c{number}" for number in range(count)]


def _batch(names: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_ONE] * len(names), names=names)


@pytest.mark.slow
def test_many_attributes_match():
    names = _names(100_000)
    struct = pa.StructArray.from_arrays([_ONE] * len(names), names=names)
    with index_of([[]], [7], where="c1 = 1", device="cpu") as tm:
        for right in (_batch(names), pa.RecordBatch.from_arrays([struct, _ONE], names=["attributes", "x"])):
            assert tm.match_many(right).to_pylist() == [[7]]
        twice = pa.RecordBatch.from_arrays([struct, _ONE], names=["attributes", "c9"])
        for wrong, message in ((_batch([*names, "c9"]), "one column 'c9', not 2"), (twice, "'c9'")):
            with pytest.raises(InvalidValueError, match=message):
                tm.match_many(wrong)
        with serving(tm) as service, tagmatch.connect(service.url) as client:
            assert client.match_many(_batch(_names(MAX_FIELDS))).to_pylist() == [[7]]
            for call in (client.match_many, client.publish):
                with pytest.raises(InvalidValueError, match="at most 4,096 columns"):
                    call(_batch(_names(MAX_FIELDS + 1)))


@pytest.mark.slow
def test_the_command_reads_many_columns(tmp_path):
    names, queries, sets = _names(5_000), tmp_path / "queries.csv", tmp_path / "sets.jsonl"
    queries.write_text("\n".join([",".join(["tags", *names]), ",".join(["a", *["1"] * len(names)])]))
    sets.write_text(json.dumps({"tags": ["a"], "key": 7, "where": "c1 = 1", **dict.fromkeys(names, 1)}))
    done("build", sets, tmp_path / "x.index")
    (answer,) = from_json_lines(command("match", tmp_path / "x.index", queries, "--attributes", "*"))
    assert answer["keys"] == [7]


def test_a_stream_has_a_bound():
    fields = [(name, _INT) for name in _names(MAX_FIELDS)]
    struct = pa.struct(fields)
    kinds = {"attributes": struct, "x": pa.dictionary(_INT, pa.list_(struct)), "y": pa.opaque(struct, "a", "b")}
    for wide in ([*fields, ("last", _INT)], *([each] for each in kinds.items())):
        with pytest.raises(InvalidValueError, match="at most 4,096 columns"):
            check_schema(pa.schema(wide))


def test_attributes_of_one_message_as_json_have_a_bound():
    """As nothing else goes on while JSON is read."""
    longest = json.dumps({"a": "x" * (MAX_JSON - 10)})
    for text, error in ((longest, None), (longest + "  ", r"row 1 must have at most 1,048,576 bytes, not 1,048,57.")):
        batch = pa.record_batch({"attributes": ["{}", text]})
        with pytest.raises(InvalidValueError, match=error) if error else contextlib.nullcontext():
            messages_of(batch, MatchOptions(), 0.0)
