"""What records of Kafka say: in columns the same as one by one, and by schemas of a registry."""

import json
import math
import struct
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.agreement import index_of
from support.schema_registry import Registry

from tagmatch.broker.config import KafkaOptions, MqttOptions
from tagmatch.broker.incoming import Rows
from tagmatch.broker.kafka_values import Values, with_headers
from tagmatch.model.clock import steady_us
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError

WHERE = ["p = 1", "p = 0.5", "p < 2", 'p = "a"', "p = true", "exists(q)", "not exists(p)", "within circle(3, 4, 5)"]


class Record(NamedTuple):
    given: bytes
    heads: Any = None

    def value(self) -> bytes:
        return self.given

    def headers(self) -> Any:
        return self.heads

    def topic(self) -> str:
        return "in"


@pytest.fixture(scope="module")
def tm():
    sets = [*([[]] * len(WHERE)), ["a"], ["b", "é"]]
    with index_of(sets, range(len(sets)), where=[*WHERE, None, None]) as tm:
        yield tm


def values_of(**options: Any) -> Values:
    return Values(KafkaOptions(messages="in", **options), 1 << 20, steady_us, plane=False)


def matched(tm, rows: Rows) -> list[Any]:
    table = rows.published().drop_columns(["id", "payload", "expires"])
    return list(zip(rows.payloads, rows.ids, map(set, tm.match_many(table, unique=True).to_pylist()), strict=True))


def said(tm, values: Values, records: list[Record]) -> tuple[list[Any], int]:
    """The payload, the id and the keys of each message that can be read, and how many cannot."""
    read = values.read(records)
    found, refused = [each for rows in read.rows for each in matched(tm, rows)], len(read.refused)
    for came in read.messages:
        try:
            found += matched(tm, Rows.of([values.row_of(came)]))
        except TagMatchError:
            refused += 1
    return sorted(found, key=lambda each: (each[0], each[1] or b"", sorted(each[2]))), refused


def alone(tm, values: Values, records: list[Record]) -> tuple[list[Any], int]:
    """The same, each message one by one."""
    values._reads = None
    return said(tm, values, records)


_SCALARS = st.sampled_from([0, 1, -7, 2**53 + 1, 2**63 - 1, 0.5, -7.0, True, False, "", "a", "9", None])
_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["p", "q", "r", "id"]),
    _SCALARS | st.lists(st.sampled_from([-3, "a", None]), max_size=2),
    max_size=3,
)
_TEXTS = st.sampled_from(["a", "b", "é", "", "x\ny", 'q"', "{", "\\"])
_HEADERS = st.lists(
    st.one_of(
        st.tuples(st.just("tag"), _TEXTS.map(str.encode)),
        st.tuples(
            st.sampled_from(["attribute:p", "attribute-q"]), st.sampled_from([b"1", b"0.5", b"a", b"true", b"", b"[1]"])
        ),
        st.tuples(st.sampled_from(["id", "trace", "Tag", "expires-in", "lon"]), st.sampled_from([b"7", b"x", b"\xff"])),
    ),
    max_size=3,
)  # fmt: skip
_OBJECTS = st.fixed_dictionaries(
    {}, optional={"tags": st.lists(_TEXTS, max_size=3), "attributes": _ATTRIBUTES, "location": st.just([3, 4])}
).map(lambda found: json.dumps(found).encode())
ODD = [
    b"", b"{}", b"{", b"[]", b'{"tags": ["a"]}{"tags": ["b"]}', b'{"tags": ["a"], "tags": ["b"]}', b'{"tags": null}',
    b'{"tags": [null]}', b'{"tags": ["\\ud800"]}', b'{"tags": ["\xff"]}', b'\xef\xbb\xbf{"tags": ["a"]}',
    b' {"tags":["a"]}\n', b'{"tags": [1]}', b'{"tag": ["a"]}', b'{"attributes": {"p": 99999999999999999999}}',
    b'{"tags": ["a\x00"]}', b'{"attributes": {"tags": 1}}', b'{"attributes": {"id": 1, "p": [1, 2]}}',
    b'{"location": 7}',
]  # fmt: skip
_ODD = st.sampled_from(ODD)


@given(st.lists(st.tuples(st.one_of(_OBJECTS, _ODD), st.none() | _HEADERS), max_size=8))
@example([(b"{}", [("id", b"\xff")])])
def test_columns_say_what_each_message_does(tm, given):
    records = [Record(*each) for each in given]
    for form in ("json", "properties"):
        assert said(tm, values_of(form=form), records) == alone(tm, values_of(form=form), records)


@given(st.lists(_OBJECTS, min_size=1, max_size=8), st.lists(_ODD, max_size=1))
def test_objects_of_any_values_are_in_columns(tm, objects, odd):
    assert len(values_of(form="json").read([*map(Record, objects)]).rows) == 1
    records = [*map(Record, objects + odd)]
    assert said(tm, values_of(form="json"), records) == alone(tm, values_of(form="json"), records)


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_message_is_read_as_it_is_alone(tm, odd):
    records = [Record(b'{"tags": ["a"]}'), Record(odd)]
    assert said(tm, values_of(form="json"), records) == alone(tm, values_of(form="json"), records)


def test_messages_beside_an_odd_one_stay_in_columns():
    records = [Record(b'{"tags": ["a"]}')] * 2_000
    records[700] = Record(b"{")
    read = values_of(form="json").read(records)
    assert sum(map(len, read.rows)) + len(read.messages) == 2_000
    assert len(read.messages) <= 500


# -- by schemas --------------------------------------------------------------------------------------------------------

_PLACE = {"type": "array", "items": "double"}
_SAID = {"type": "record", "name": "Said", "fields": [{"name": "p", "type": ["null", "int", "string"]}]}
_FIRST = {"type": "record", "name": "Offer", "fields": [{"name": "tags", "type": {"type": "array", "items": "string"}}]}
_SECOND = {
    **_FIRST,
    "fields": [
        *_FIRST["fields"],
        {"name": "attributes", "type": _SAID},
        {"name": "location", "type": ["null", _PLACE]},
    ],
}


@contextmanager
def registry():
    with closing(Registry()) as found:
        yield found


def test_values_of_two_schemas_in_one_batch(tm):
    with registry() as found:
        first, second, third = found.avro(1, _FIRST), found.avro(7, _SECOND), found.protobuf(300)
        values = values_of(form="json", registry=found.url)
        given = [
            (first({"tags": ["a"]}), {6, 8}),
            (second({"tags": ["b", "é"], "attributes": {"p": 1}, "location": [3.0, 4.0]}), {0, 2, 7, 9}),
            (second({"tags": [], "attributes": {"p": "a"}, "location": None}), {3}),
            (third(tags=["a"], attributes={"price": 3}), {6, 8}),
            (first({"tags": ["b"]}), {6}),
        ]
        records = [Record(value) for value, _ in given]
        assert values.waiting(records) == ([], "")
        read = values.read(records)
        assert (len(read.rows), read.messages, read.refused) == (1, [], [])
        assert [keys for *_, keys in matched(tm, read.rows[0])] == [keys for _, keys in given]
        assert sorted(found.asked) == [
            "/schemas/ids/1",
            "/schemas/ids/300",
            "/schemas/ids/300?format=serialized",
            "/schemas/ids/7",
        ]


def test_fields_of_protobuf_have_their_defaults_and_times():
    with registry() as found:
        write = found.protobuf(5)
        values = values_of(form="json", registry=found.url)
        record = Record(write(tags=["x"], attributes={"city": "Rome", "at": {"seconds": 60}}, location=[3, 4]))
        sets = [
            'price = 0 and city = "Rome"',
            'at = timestamp("1970-01-01T00:01:00Z")',
            "price = 1",
            "within circle(3, 4, 5)",
        ]
        with index_of([[]] * 4, range(4), where=sets) as tm:
            (rows,) = values.read([record]).rows
            assert matched(tm, rows)[0][2] == {0, 1, 3}


def wrong_values(first, third) -> list[tuple[bytes, str]]:
    good = first({"tags": ["a"]})
    return [
        (b"", "must begin with a zero byte and the number of its schema"),
        (b'{"tags": []}', "it begins with 0x7b22746167"),
        (b"\x01" + good[1:], "must begin with a zero byte"),
        (b"\0\0\0", "must begin with a zero byte"),
        (struct.pack(">bI", 0, 99) + good[5:], "the registry has no schema 99"),
        (good[:-2], "the value is not as schema 1 has it"),
        (good + b"x", "schema 1 has it: ValueError: 1 bytes are left"),
        (struct.pack(">bI", 0, 2) + b"\x02", "a value of schema 2 must be a record, not int"),
        (struct.pack(">bI", 0, 3), "schema 3 is of type 'XML', not AVRO, PROTOBUF or JSON"),
        (struct.pack(">bI", 0, 4), "schema 4 cannot be used"),
        (struct.pack(">bI", 0, 6) + b"{", "the value is no JSON"),
        (third(tags=["a"])[:-1], "the value is not as schema 5 has it"),
        (third()[:5] + b"\x02\x40", "the value is not as schema 5 has it"),
        (third()[:5] + b"\x80" * 9, "the value is not as schema 5 has it"),
    ]


def test_wrong_values_say_what_is_wrong():
    with registry() as found:
        first, third = found.avro(1, _FIRST), found.protobuf(5)
        found.schemas |= {
            2: {"schema": '"int"'}, 3: {"schemaType": "XML"}, 4: {"schema": '{"type": "nothing"}'},
            6: {"schemaType": "JSON", "schema": "{}"},
        }  # fmt: skip
        values = values_of(form="json", registry=found.url)
        wrong = wrong_values(first, third)
        good = [first({"tags": ["a"]}), struct.pack(">bI", 0, 6) + b'{"tags": ["a"]}']
        records = [Record(each) for each in [*(value for value, _ in wrong), *good]]
        assert values.waiting(records) == ([], "")
        read = values.read(records)
        assert (read.rows, read.refused) == ([], [])
        reasons = []
        for came in read.messages[: len(wrong)]:
            with pytest.raises((InvalidTypeError, InvalidValueError)) as raised:
                values.row_of(came)
            reasons.append(str(raised.value))
        assert [why in reason for (_, why), reason in zip(wrong, reasons, strict=True)] == [True] * len(wrong), reasons
        assert [values.row_of(came).tags for came in read.messages[len(wrong) :]] == [["a"], ["a"]]


def test_a_registry_that_is_away_makes_messages_wait():
    with registry() as found:
        first, second = found.avro(1, _FIRST), found.avro(7, _SECOND)
        values = values_of(form="json", registry=found.url + "/")
        known, new = Record(first({"tags": []})), Record(second({"tags": [], "attributes": {"p": 1}, "location": None}))
        assert values.waiting([known]) == ([], "")
        found.is_up = False
        waiting, why = values.waiting([known, new, Record(b"bad")])
        assert waiting == [new]
        assert why.endswith("answers 503 Service Unavailable")
        found.is_up, found.wanted = True, "Bearer right"
        assert values.waiting([new])[1].endswith("answers 401 Unauthorized")
        found.wanted = None
        assert values.waiting([new]) == ([], "")
    assert "does not answer" in values_of(form="json", registry=found.url).waiting([new])[1]


@pytest.mark.parametrize(("username", "login"), [(None, "Bearer s3"), ("ana", "Basic YW5hOnMz")])
def test_a_gateway_logs_in_at_the_registry(tmp_path, username, login):
    (tmp_path / "secret").write_text("s3\n")
    with registry() as found:
        record, found.wanted = Record(found.avro(1, _FIRST)({"tags": []})), login
        more = {"registry_secret_file": str(tmp_path / "secret"), "registry_username": username}
        values = values_of(form="json", registry=found.url, **more)
        (tmp_path / "secret").unlink()
        assert "cannot be read" in values.waiting([record])[1]
        (tmp_path / "secret").write_text("s3\n")
        assert values.waiting([record]) == ([], "")


def test_a_schema_may_name_others():
    with registry() as found:
        (first,) = [found.avro(1, _FIRST)]
        whole = {
            "type": "record",
            "name": "Whole",
            "fields": [*_FIRST["fields"], {"name": "attributes", "type": "Said"}],
        }
        own = {"type": "record", "name": "Whole", "fields": [*_FIRST["fields"], {"name": "attributes", "type": _SAID}]}
        write = found.avro(2, own)
        found.schemas[2] = {
            "schema": json.dumps(whole),
            "references": [{"name": "Said", "subject": "a b", "version": 3}],
        }
        answer = found.answer
        found.answer = lambda path, login: (
            (200, {"schema": json.dumps(_SAID)}) if path == "/subjects/a%20b/versions/3" else answer(path, login)
        )
        values = values_of(form="json", registry=found.url)
        (rows,) = values.read(
            [Record(write({"tags": ["a"], "attributes": {"p": 1}})), Record(first({"tags": []}))]
        ).rows
        assert rows.table["attributes"].to_pylist() == [{"p": 1}, {"p": None}]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"registry": "registry:8081", "form": "json"}, "registry must be an address as"),
        ({"registry": "http://ana:secret@registry", "form": "json"}, "registry must be an address as"),
        ({"registry": "http://registry"}, "registry needs form = 'json'"),
        ({"registry_username": "ana"}, "registry_username also needs registry"),
        ({"registry": "http://a", "form": "json", "registry_username": "ana"}, "also needs registry_secret_file"),
        ({"registry": "http://a", "form": "json", "registry_ca": "a"}, "registry_ca needs a registry with https"),
        ({"form": "avro"}, "form must be"),
    ],
)
def test_wrong_options_of_values_are_refused(options, why):
    with pytest.raises(InvalidValueError, match=why):
        KafkaOptions(messages="in", **options)
    with pytest.raises(InvalidValueError, match="form must be 'properties' or 'json' or 'cloudevents' here"):
        MqttOptions(messages="in", form="arrow")


# -- Arrow -------------------------------------------------------------------------------------------------------------


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def test_a_value_of_arrow_has_many_messages(tm):
    table = pa.table({"tags": [["a"], ["b", "é"], []], "p": [1.0, None, math.nan], "id": ["x", None, None]})
    (rows,) = values_of(form="arrow").read([Record(stream(table), [("id", b"own")])]).rows
    assert rows.is_whole
    assert len(rows.came) == 1
    assert matched(tm, rows) == [
        (b'{"tags": ["a"], "p": 1.0}', b"x", {0, 2, 8}), (b'{"tags": ["b", "\\u00e9"]}', b"own", {6, 9}),
        (b'{"tags": [], "p": null}', b"own", set()),
    ]  # fmt: skip
    with_payloads = table.append_column("payload", [["1", "2", None]])
    (rows,) = values_of(form="arrow").read([Record(stream(with_payloads))]).rows
    assert rows.payloads == [b"1", b"2", b'{"tags": [], "p": null}']


class NoText(Record):
    """As the client gives it if the name of a header is no UTF-8: with an error, then a list that crashes."""

    def headers(self) -> Any:
        if self.heads:
            raise AssertionError("the client would crash")
        self.heads.append(None)
        raise self.given_error

    given_error = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")


@pytest.mark.parametrize("form", ["properties", "json", "arrow"])
def test_a_header_whose_name_is_no_text_refuses_its_record(form):
    value = stream(pa.table({"tags": [["a"]]})) if form == "arrow" else b'{"tags": ["a"]}'
    records = [with_headers(NoText(value, [])), with_headers(Record(value))]
    assert records[0].headers() is None
    read = values_of(form=form).read(records)
    ((letter, reason),) = read.refused
    assert (letter.payload, str(reason)) == (value, "the name of a header is no UTF-8")
    assert sum(map(len, read.rows)) + len(read.messages) == 1


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "the value is no stream of Arrow IPC"),
        (b"ARROW1\0\0", "write it as a stream of Arrow IPC"),
        (b"x" * 100, "the value is no stream of Arrow IPC"),
        (stream(pa.table({"tags": [["a"]] * 5}))[:-60], "Arrow"),
        (stream(pa.table({"tgas": [["a"]]})), "'tgas'"),
        (stream(pa.table({"tags": [["a"]] * 20})), "max_waiting allows|at most 10 rows"),
        (stream(pa.table({"tags": [["a"]], "at": pa.array([10**15], pa.timestamp("s"))})), "cannot be written as one"),
        (
            stream(pa.table({"tags": [["a"]], "at": pa.array([1], pa.timestamp("s", "No/Where"))})),
            "cannot be written as one",
        ),
        (
            stream(
                pa.table(
                    {"tags": [["a"]], "attributes": pa.array([[("x", 1), ("x", 2)]], pa.map_(pa.string(), pa.int8()))}
                )
            ),
            "cannot be written as one",
        ),
        (
            stream(pa.table({"tags": [["a"]], "raw": pa.array([[(b"x", 1)]], pa.map_(pa.binary(), pa.int8()))})),
            "cannot be written as one|attributes",
        ),
    ],
)
def test_wrong_values_of_arrow_are_refused(value, why):
    read = values_of(form="arrow", max_waiting=10).read([Record(value), Record(stream(pa.table({"tags": [["a"]]})))])
    ((_, reason),) = read.refused
    assert len(read.rows) == 1
    with pytest.raises(TagMatchError, match=why):
        raise reason
