"""Whatever comes over the wire, the service gives an error of one line, and goes on answering."""

import contextlib
import json

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import flight
from support.agreement import index_of
from support.raw_flight import field
from support.service import command, config, exchanged, messages, options, put

from tagmatch import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.broker import wire
from tagmatch.broker.answers import ACTIONS
from tagmatch.broker.service import serving
from tagmatch.broker.wire import INTERNAL, area_of, area_row, error_of_text, read_json, write_json

more = settings(max_examples=2 * settings().max_examples)


def json_values(floats):
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )


JSON = json_values(st.floats())
#: What JSON has names for
FINITE_JSON = json_values(st.floats(allow_nan=False, allow_infinity=False))
NAMES = st.sampled_from(
    ["command", "get", "unique", "plain", "coalesce", "apart", "commit", "full", "tags", "where", "within", "count_by"]
)
SUBSCRIBER_OPTIONS = st.sampled_from(["session", "keys", "every_key", "guarantee", "when_full", "linger"])
VALUES = (
    st.sampled_from(
        [
            "match",
            "match_unique",
            "match_counts",
            "match_exists",
            "match_highlights",
            "match_best",
            "add",
            "remove",
            "move",
            "rows",
            "sets",
            "notify",
            "publish",
        ]
    )
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
    where = [None, None, "x > 1 and within circle(1, 2, 3)"]
    index = index_of([["a"], ["b"], []], [1, 2, 3], where=where, threads=1, device="cpu")
    with index, serving(index, config(max_batch_rows=1000)) as service, flight.connect(service.url) as client:
        yield service, client
        index.consolidate()


def goes_on(served) -> None:
    service, client = served
    found = exchanged(client, command(command="match"), messages([["a", "c"]]))
    assert found.to_pylist() == [{"keys": [1]}]
    assert service.limits.wait_until_idle(60)


def attempt(call, *arguments) -> None:
    """An error is one of the service, in one line, that names neither code nor files of it."""
    try:
        call(*arguments)
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        text = str(error)
        assert "Traceback" not in text
        assert ".py" not in text.partition("gRPC client debug context")[0]
        assert INTERNAL not in text
        told = error_of_text(getattr(error, "extra_info", b"") or b"")
        assert told is None or "\n" not in str(told)


ACTION = st.sampled_from([name for name in ACTIONS if name != "drain"]) | st.text(max_size=20)
IN_COMMANDS = [
    b'{"command": "match", "unique": 1}', b'{"command": ["match"]}', b'{"command": "publish", "session": "a"}',
    b'{"command": "notify", "session": "a", "keys": [[1]]}', b'{"command": "notify", "session": "a", "linger": NaN}',
    b'{"command": "notify", "session": "a", "linger": 1%s}' % (b"0" * 400),
    b'{"get": "rows", "more": 1}', b'{"get": {}}',
]  # fmt: skip
IN_ACTIONS = [
    ("explain", b'{"tags": [1]}'), ("explain", b'{"tags": ["a"], "location": ["x", {}]}'),
    ("explain", b'{"tags": ["a"], "location": [1]}'), ("explain", b'{"tags": ["a"], "attributes": {"x": {"y": 1}}}'),
    ("explain", b'{"tags": ["a"], "within": {"kind": "circle", "lon": "x", "lat": 1, "metres": 1}}'),
    ("explain", b'{"within": {"kind": [1]}}'), ("explain", b'{"tags": ["\\ud800"]}'),
    ("contains", b'{"tags": [[]], "where": ["x <"]}'),
    ("contains", b'{"tags": [], "where": [7]}'), ("consolidate", b'{"full": "yes"}'),
]  # fmt: skip


def ask(served, body, is_path, name) -> None:
    """A command, or the part of it that may be in a path, to everything that takes one; and an action."""
    _, client = served
    descriptor = flight.FlightDescriptor.for_path(body[:100]) if is_path else flight.FlightDescriptor.for_command(body)
    batch = pa.record_batch({"key": [9], "tags": [["z"]]})  # a command may remove it
    attempt(exchanged, client, descriptor, batch)
    attempt(put, client, descriptor, batch)
    attempt(client.get_flight_info, descriptor, options())
    attempt(lambda: client.do_get(flight.Ticket(body), options()).read_all())
    attempt(lambda: list(client.do_action((name, body), options())))
    goes_on(served)


@more
@given(body=BODIES, is_path=st.booleans(), name=ACTION)
def test_commands_tickets_and_actions(served, body, is_path, name):
    ask(served, body, is_path, name)


@pytest.mark.parametrize(("name", "body"), [*((None, body) for body in IN_COMMANDS), *IN_ACTIONS])
def test_what_is_nearly_right(served, name, body):
    ask(served, body, False, name or "explain")


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
    service, client = served
    batch = pa.RecordBatch.from_arrays([_nulls(kind, rows) for _, kind in schema], names=[name for name, _ in schema])

    asked = command(command=name, **({"session": "a"} if name == "notify" else {}))
    attempt(exchanged if name in ("match", "notify") else put, client, asked, batch)
    service.index.consolidate()
    goes_on(served)


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    try:
        return pa.nulls(rows, kind)
    except pa.ArrowException:
        return pa.nulls(rows)


@given(
    JSON, st.dictionaries(st.text(max_size=5), FINITE_JSON, max_size=3),
    st.binary(max_size=50) | JSON.map(json.dumps).map(str.encode),
)  # fmt: skip
def test_json(value, finite, info):
    with contextlib.suppress(InvalidTypeError, InvalidValueError):
        area = area_of(value, "within")
        assert area_of(area_row(area), "within") == area
    assert read_json(write_json(finite), "it") == finite
    assert isinstance(error_of_text(info), TagMatchError | None)


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


READERS = [wire.read_data, wire.read_descriptor, wire.read_ticket, wire.read_action]


@given(command=st.binary(max_size=300), name=st.text(max_size=20))
def test_what_arrow_writes_and_reads(command, name):
    descriptor = flight.FlightDescriptor.for_command(command).serialize()
    assert wire.read_descriptor(descriptor) == (True, command)
    assert wire.read_descriptor(flight.FlightDescriptor.for_path(command, b"x").serialize()) == (False, b"")
    assert wire.read_ticket(flight.Ticket(command).serialize()) == command
    assert wire.read_action(flight.Action(name, command).serialize()) == (name, command)
    found = wire.read_data(field(1, descriptor) + field(1000, command) + field(2, b"header") + field(7, b"unknown"))
    assert (found.descriptor, found.header, found.body) == ((True, command), b"header", command)
    assert flight.Result.deserialize(wire.result(command)).body.to_pybytes() == command


@given(message=st.binary(max_size=40), reader=st.sampled_from(READERS))
@example(message=b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f", reader=wire.read_data)  # longer than the message
@example(message=b"\x08\x01" * 1000, reader=wire.read_ticket)
@example(message=field(1, b"\xff\xfe"), reader=wire.read_action)
def test_bytes_of_strangers(message, reader):
    with contextlib.suppress(InvalidValueError):
        reader(message)


# A number without an end, groups, ...
@pytest.mark.parametrize(
    "message", [b"\xff" * 20, b"\x10\x01", b"\x0b", b"\x0b\x0c", b"\x02\x00", b"\x12\x05abcd", field(1, b"\x12")]
)
def test_malformed(message):
    with pytest.raises(InvalidValueError, match="Protocol Buffer"):
        wire.read_data(message)
