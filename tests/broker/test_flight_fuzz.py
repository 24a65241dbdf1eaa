"""Whatever comes over the wire, the service gives an error of one line, and goes on answering."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import flight
from support.arrow_messages import messages_in, stream_of
from support.service import command, config, messages, options

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch, TagMatchError
from tagmatch.broker.actions import ACTIONS
from tagmatch.broker.errors import INTERNAL, error_of_text, flight_error
from tagmatch.broker.messages import check_messages, check_schema, messages_of
from tagmatch.broker.running import serving
from tagmatch.broker.wire import MatchOptions, area_of, area_row, read_json, write_json
from tagmatch.files.ipc import IpcReader

more = settings(max_examples=60)


def json_values(floats):
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )


JSON = json_values(st.floats())
#: What JSON has names for
FINITE_JSON = json_values(st.floats(allow_nan=False, allow_infinity=False))
NAMES = st.sampled_from(["command", "get", "unique", "plain", "coalesce", "commit", "full", "tags", "where", "within"])
SUBSCRIBER_OPTIONS = st.sampled_from(["session", "keys", "every_key", "guarantee", "when_full", "linger"])
VALUES = (
    st.sampled_from(["match", "match_unique", "add", "remove", "move", "rows", "sets", "notify", "publish"])
    | st.sampled_from(["at_least_once", "drop_oldest"])
    | JSON
)
BODIES = (
    st.dictionaries(NAMES | SUBSCRIBER_OPTIONS, VALUES, max_size=4).map(json.dumps).map(str.encode)
    | JSON.map(json.dumps).map(str.encode)
    | st.binary(max_size=40)
    | st.just(b"[" * 100_000)
    | st.just(b'{"a":' * 50_000)
    | st.just(b" " * (2 << 20))
)


@pytest.fixture(scope="module")
def served():
    index = TagMatch(threads=1, device="cpu")
    index.add_sets([["a"], ["b"]], [1, 2])
    index.add_set([], 3, where="x > 1 and within circle(1, 2, 3)")
    index.consolidate()
    with index, serving(index, config(max_batch_rows=1000)) as service, flight.connect(service.url) as client:
        yield service, client
        index.consolidate()


def goes_on(served) -> None:
    """The service still gives right answers, and nothing is under way."""
    service, client = served
    writer, reader = client.do_exchange(command(command="match"), options())
    with writer:
        writer.begin(messages([]).schema)
        writer.write_batch(messages([["a", "c"]]))
        writer.done_writing()
        assert reader.read_all().to_pylist() == [{"keys": [1]}]
    assert service.wait_until_idle(30)


def check_error(error: BaseException) -> None:
    """An error of the service, in one line, that names neither code nor files of it."""
    text = str(error)
    assert "Traceback" not in text
    assert ".py" not in text.partition("gRPC client debug context")[0]
    assert INTERNAL not in text
    told = error_of_text(getattr(error, "extra_info", b"") or b"")
    assert told is None or "\n" not in str(told)


def attempt(call) -> None:
    try:
        call()
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        check_error(error)


@more
@given(body=BODIES, is_path=st.booleans())
@example(body=b'{"command": "match", "unique": 1}', is_path=False)
@example(body=b'{"command": ["match"]}', is_path=False)
@example(body=b'{"command": "notify", "session": "a", "keys": [[1]]}', is_path=False)
@example(body=b'{"command": "notify", "session": "a", "linger": NaN}', is_path=False)
@example(body=b'{"command": "publish", "session": "a"}', is_path=False)
def test_descriptors(served, body, is_path):
    _, client = served
    descriptor = flight.FlightDescriptor.for_path(body[:100]) if is_path else flight.FlightDescriptor.for_command(body)
    batch = pa.record_batch({"key": [1], "tags": [["a"]]})

    def exchange():
        writer, reader = client.do_exchange(descriptor, options())
        with writer:
            writer.begin(batch.schema)
            writer.write_batch(batch)
            writer.done_writing()
            for _ in reader:
                pass

    def put():
        writer, answers = client.do_put(descriptor, batch.schema, options())
        with writer:
            writer.write_batch(batch)
            writer.done_writing()
            answers.read()

    for call in (exchange, put, lambda: client.get_flight_info(descriptor, options())):
        attempt(call)
    goes_on(served)


@more
@given(body=BODIES)
@example(body=b'{"get": "rows", "more": 1}')
@example(body=b'{"get": {}}')
def test_tickets(served, body):
    attempt(lambda: served[1].do_get(flight.Ticket(body), options()).read_all())
    goes_on(served)


@more
@given(name=st.sampled_from([name for name in ACTIONS if name != "drain"]) | st.text(max_size=20), body=BODIES)
@example(name="explain", body=b'{"tags": [1]}')
@example(name="explain", body=b'{"tags": ["a"], "location": ["x", {}]}')
@example(name="explain", body=b'{"tags": ["a"], "location": [1]}')
@example(name="explain", body=b'{"tags": ["a"], "attributes": {"x": {"y": 1}}}')
@example(name="explain", body=b'{"tags": ["a"], "within": {"kind": "circle", "lon": "x", "lat": 1, "metres": 1}}')
@example(name="explain", body=b'{"tags": ["\\ud800"]}')
@example(name="contains", body=b'{"tags": [[]], "where": ["x <"]}')
@example(name="contains", body=b'{"tags": [], "where": [7]}')
@example(name="consolidate", body=b'{"full": "yes"}')
def test_actions(served, name, body):
    attempt(lambda: list(served[1].do_action((name, body), options())))
    goes_on(served)


TYPES = st.sampled_from(
    [
        pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.dictionary(pa.int8(), pa.string())),
        pa.list_(pa.binary()), pa.string(), pa.int64(), pa.null(), pa.list_(pa.list_(pa.string())), pa.float16(),
        pa.struct([("lon", pa.float64()), ("lat", pa.float64())]), pa.list_(pa.float64(), 2), pa.list_(pa.null()),
        pa.struct([]), pa.dictionary(pa.int8(), pa.string()), pa.timestamp("us"), pa.timestamp("us", "UTC"),
        pa.map_(pa.string(), pa.string()), pa.decimal128(9), pa.bool_(), pa.run_end_encoded(pa.int32(), pa.string()),
    ]
)  # fmt: skip
COLUMN_NAMES = st.sampled_from(
    ["tags", "key", "id", "attributes", "location", "within", "where", "constraints", "area", "expires", "x", ""]
)
SUBSCRIBER_NAMES = st.sampled_from(["payload", "acknowledge", "follow", "unfollow"])
SCHEMAS = st.lists(st.tuples(COLUMN_NAMES | SUBSCRIBER_NAMES, TYPES), max_size=4)


@more
@given(
    schema=SCHEMAS,
    rows=st.integers(0, 3),
    name=st.sampled_from(["match", "add", "remove", "move", "notify", "publish"]),
)
def test_columns_of_any_type(served, schema, rows, name):
    """Rows of nulls of any type, in any columns."""
    service, client = served
    batch = pa.RecordBatch.from_arrays([_nulls(kind, rows) for _, kind in schema], names=[name for name, _ in schema])

    def send():
        if name in ("match", "notify"):
            named = {"session": "a"} if name == "notify" else {}
            writer, reader = client.do_exchange(command(command=name, **named), options())
            writer.begin(batch.schema)
        else:
            writer, _ = client.do_put(command(command=name), batch.schema, options())
            reader = ()
        with writer:
            writer.write_batch(batch)
            writer.done_writing()
            for _ in reader:
                pass

    attempt(send)
    service.index.consolidate()
    goes_on(served)


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    try:
        return pa.nulls(rows, kind)
    except pa.ArrowException:
        return pa.nulls(rows)


def _strings(data: bytes, *offsets: int) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _lists(values: pa.Array, *offsets: int) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32))]
    return pa.Array.from_buffers(pa.list_(values.type), len(offsets) - 1, buffers, children=[values])


UNSOUND = {
    "text that is no UTF-8": _lists(_strings(b"a\xff", 0, 1, 2), 0, 2),
    "strings that go backwards": _lists(_strings(b"abc", 0, 3, 1, 3), 0, 3),
    "lists that go backwards": _lists(_strings(b"abc", 0, 1, 2, 3), 0, 3, 1, 3),
    "an index that the dictionary has not": _lists(
        pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False), 0, 2
    ),
}


@pytest.mark.parametrize("what", UNSOUND)
@pytest.mark.parametrize("name", ["match", "add", "publish"])
def test_unsound_arrow_data(served, name, what):
    """What Arrow itself reads without a word: the service validates it in full."""
    _, client = served
    batch = pa.RecordBatch.from_arrays([UNSOUND[what]], names=["tags"])
    if name == "add":
        batch = batch.append_column("key", pa.array(range(len(batch)), pa.uint64()))

    def send():
        if name == "match":
            writer, _ = client.do_exchange(command(command=name), options())
            writer.begin(batch.schema)
        else:
            writer, _ = client.do_put(command(command=name), batch.schema, options())
        with writer:
            writer.write_batch(batch)
            writer.done_writing()

    with pytest.raises(flight.FlightServerError, match=r"Arrow data|column 'tags'"):
        send()
    goes_on(served)


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_arrow_data(data):
    """Bytes of a stream that somebody has changed: whatever of it Arrow reads is refused, or can be matched.

    What follows is all that the service does before it asks the index.
    """
    tags = [["a", "b"], [], ["cc"] * 5]
    batch = messages(tags, x=[1, None, 3], attributes=['{"y": 1}', None, "{}"], location=[[1.0, 2.0], None, [3.0, 4.0]])
    sent = [bytearray(part) for message in messages_in(stream_of([batch])) for part in message]
    for _ in range(data.draw(st.integers(1, 4))):
        part = data.draw(st.sampled_from([each for each in sent if each]))
        part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255) | st.sampled_from([127, 128]))
    reader = IpcReader(most_bytes=1 << 20, most_rows=1000)
    try:
        reader.feed(sent[0], sent[1])
        check_schema(reader.schema)
        read = reader.feed(sent[2], sent[3])
        queries = messages_of(read, MatchOptions(), 0.0).queries
        check_messages(queries, 0, plane=False)
    except Exception as error:
        check_error(flight_error(error))
        return
    assert len(INDEX.match_many(queries)) == len(read)


INDEX = TagMatch(threads=1, device="cpu")
INDEX.add_sets([["a"], []], [1, 2], where=["x > 0", None])
INDEX.consolidate()


@given(value=JSON)
def test_areas_in_json(value):
    try:
        area = area_of(value, "within")
    except (InvalidTypeError, InvalidValueError):
        return
    assert area_of(area_row(area), "within") == area


@given(value=st.dictionaries(st.text(max_size=5), FINITE_JSON, max_size=3))
def test_json_comes_back(value):
    assert read_json(write_json(value), "it") == value


@given(info=st.binary(max_size=50) | JSON.map(json.dumps).map(str.encode))
def test_errors_in_json(info):
    found = error_of_text(info)
    assert found is None or isinstance(found, TagMatchError)


def test_what_fails_within_is_not_shown(served, monkeypatch):
    service, client = served

    def broken(*_, **__):
        raise RuntimeError("secret of /the/machine.py")

    monkeypatch.setattr(service.index, "match_many", broken)
    writer, reader = client.do_exchange(command(command="match"), options())
    writer.begin(messages([]).schema)
    writer.write_batch(messages([["a"]]))
    chunk = reader.read_chunk()  # reading cannot be broken off: the error comes as metadata, and at the end
    assert chunk.data is None
    assert json.loads(chunk.app_metadata.to_pybytes()) == {"error": "TagMatchError", "message": INTERNAL}
    writer.done_writing()
    with pytest.raises(flight.FlightInternalError, match=INTERNAL) as caught:
        reader.read_chunk()
    assert "secret" not in str(caught.value)
    with pytest.raises(flight.FlightInternalError):
        writer.close()
    monkeypatch.undo()
    goes_on(served)
