"""Arrow IPC messages as anyone may send them: sound ones read as Arrow itself reads them, all others are errors."""

import contextlib
import decimal
import itertools
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrow_messages import TYPES, array_of, messages_in, stream_of

from tagmatch import InvalidTypeError, InvalidValueError
from tagmatch.files.ipc import IpcReader

MOST_BYTES = 1 << 20
COMPRESSIONS = st.sampled_from([None, "lz4", "zstd"])


def numbers(form: str) -> Callable[..., bytes]:
    return lambda *each: struct.pack(f"<{len(each)}{form}", *each)


i8, i32, i64 = map(numbers, "biq")


def read(stream: pa.Buffer, **limits: int) -> list[pa.RecordBatch]:
    reader = IpcReader(**limits)
    found = [reader.feed(*message) for message in messages_in(stream)]
    return [batch for batch in found if batch is not None]


def check_same(stream: pa.Buffer) -> None:
    with pa.ipc.open_stream(stream) as reader:
        expected = list(reader)
    found = read(stream)
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        assert mine.schema.equals(other.schema, check_metadata=True)
        mine.validate(full=True)
        assert mine.equals(other)


@settings(max_examples=4 * settings().max_examples)
@given(kinds=st.lists(TYPES, max_size=3), seed=st.integers(0, 10**6), rows=st.integers(0, 9), compression=COMPRESSIONS)
def test_what_arrow_writes(kinds, seed, rows, compression):
    rnd = random.Random(seed)
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    batch = pa.RecordBatch.from_arrays([array_of(rnd, kind, rows) for kind in kinds], schema=schema)
    begin = rnd.randint(0, len(batch))
    check_same(stream_of([batch, batch.slice(begin, rnd.randint(0, len(batch) - begin))], compression=compression))
    # Dictionaries that change
    words, places = pa.array(["a", "b", "c", "d"]), [rnd.randint(1, 4) for _ in range(3)]
    arrays = [pa.DictionaryArray.from_arrays(pa.array([n - 1], "int8"), words[:n]) for n in places]
    batches = [pa.record_batch({"a": array}) for array in arrays]
    check_same(stream_of(batches, emit_dictionary_deltas=rnd.random() < 0.5))


def last_message(batch: pa.RecordBatch, **options: Any) -> tuple[IpcReader, bytes, bytes]:
    """A reader that has had all before the message of the batch, and that message."""
    *before, last = messages_in(stream_of([batch], **options))
    reader = IpcReader(most_bytes=MOST_BYTES)
    for message in before:
        assert reader.feed(*message) is None
    return reader, *last


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.map_("string", "int8")])
def test_no_rows_with_an_offset_far_away(kind):
    """Arrow's own validation takes it, and a question for the size of the batch then follows it."""
    reader, header, body = last_message(pa.record_batch({"tags": pa.array([], kind)}))
    far = i64(1 << 40) if pa.types.is_large_list(kind) else i32(1 << 30)
    batch = reader.feed(header, far + body[len(far) :])
    assert (len(batch), batch.nbytes >= 0, batch.schema.types) == (0, True, [kind])
    assert (batch.column(0).to_pylist(), len(batch.column(0).values)) == ([], 0)


def test_no_values_with_an_offset_far_away():
    batch = pa.record_batch({"column": pa.array([[]], pa.list_(pa.list_(pa.string())))})
    reader, header, body = last_message(batch)
    found = reader.feed(header, body[:8] + i32(1 << 30) + body[12:])
    assert (found.equals(batch), found.nbytes >= 0) == (True, True)
    assert len(found.column("column").flatten().flatten()) == 0


def test_nulls_in_maps():
    """Arrow ends the process if it finds such arrays."""
    entries = pa.StructArray.from_arrays([pa.array(["a", None]), pa.array([1, 2])], ["key", "value"])
    batch = pa.record_batch({"column": pa.ListArray.from_arrays([0, 2], entries)})
    as_map = pa.record_batch({"column": pa.array([[("a", 1), ("b", 2)]], pa.map_(pa.string(), pa.int64()))})
    schema, _ = messages_in(stream_of([as_map]))
    reader = IpcReader()
    reader.feed(*schema)
    with pytest.raises(InvalidValueError, match=r"^column 'column': its entries and their keys must not be null"):
        reader.feed(*messages_in(stream_of([batch]))[1])


def test_buffers_that_are_longer():
    """What is beyond the values is left aside: so a buffer has as many bytes as it has values."""
    batch = pa.record_batch({"column": TEXTS, "number": pa.array([1, 2, 3])})
    reader, header, body = last_message(batch)
    assert header.count(i64(0, 16)) == 1
    column = reader.feed(header.replace(i64(0, 16), i64(0, 19)), body).column("column")
    assert (column.to_pylist(), column.buffers()[1].size) == (TEXTS.to_pylist(), 16)


TEXTS = pa.array(["abc", "", "defghij"])
VIEWS = pa.array(["a view of many bytes", "another one of more bytes"], pa.string_view())
LISTS = pa.array([[5, 6, 7], [], [8]], pa.list_(pa.int8()))
UNION = pa.UnionArray.from_dense(
    pa.array([0, 1, 1, 1, 0], pa.int8()),
    pa.array([0, 0, 1, 2, 1], pa.int32()),
    [pa.array([1, 2]), pa.array(["b", "c", "d"])],
)
DECIMAL = pa.array([decimal.Decimal(12345)], pa.decimal128(5))
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), pa.array(["x", "y"]))
IN_DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["x", "y"]))


VIEWED = pa.array([[5], [6, 7]], pa.list_view(pa.int8()))
_OFFSETS, _RUNS = "offsets must go up", "runs must have ends"
DAMAGE = [
    (TEXTS, i32(0, 3, 3, 10), [i32(0, 4, 3, 10), i32(-1, 3, 3, 10), i32(0, 3, 3, 1000)], _OFFSETS),
    (TEXTS, b"abc", [b"a\xffc"], "UTF8"),
    (TEXTS.cast("large_string"), i64(0, 3, 3, 10), [i64(0, 3, 3, 1 << 40)], _OFFSETS),
    (LISTS, i32(0, 3, 3, 4), [i32(0, 3, 3, 5), i32(0, 3, 1, 4)], _OFFSETS),
    (VIEWED, i32(0, 1), [i32(0, 2)], "lists must be within"),
    (VIEWED, i32(1, 2), [i32(-1, 2)], "lists must be within"), (VIEWS, i32(25), [i32(-25)], "from 0 on"),
    (VIEWS, i32(25), [i32(26)], "within its buffers"),
    (VIEWS, i32(25) + b"anot" + i32(0, 20), [i32(25) + b"anot" + i32(1, 20)], "buffers that it has"),
    (VIEWS, i32(25) + b"anot" + i32(0, 20), [i32(25) + b"anot" + i32(0, -20)], "within its buffers"),
    (VIEWS, i32(25) + b"anot", [i32(25) + b"some"], "damaged"),
    (UNION, i8(0, 1, 1, 1, 0), [i8(0, 2, 1, 1, 0)], "types that it has"),
    (UNION, i32(0, 0, 1, 2, 1), [i32(0, 0, 1, 3, 1), i32(1, 0, 1, 2, 0)], _OFFSETS),
    (RUNS, i32(2, 4), [i32(2, 3), i32(0, 4), i32(4, 4)], _RUNS),
    (IN_DICTIONARY, i32(0, 1, 0), [i32(0, 2, 0), i32(0, -1, 0)], "indices must be within"),
    (pa.array([1, None, 3]), i8(5, 0), [i8(7, 0)], "1 nulls"), (DECIMAL, i64(12345, 0), [i64(123456, 0)], "damaged"),
]  # fmt: skip


@pytest.mark.parametrize(("array", "sound", "unsound", "says"), DAMAGE)
def test_damage(array, sound, unsound, says):
    """The message names the column, also if the array is within another one."""
    for column in (array, pa.StructArray.from_arrays([array], ["inner"])):
        batch = pa.record_batch({"some": pa.nulls(len(array)), "column": column})
        reader, header, body = last_message(batch)
        assert body.count(sound) == 1
        for each in unsound:
            with pytest.raises(InvalidValueError, match=rf"^column 'column': .*{says}"):
                reader.feed(header, body.replace(sound, each))
        assert reader.feed(header, body).equals(batch)


def test_lengths_that_differ_and_buffers_outside():
    reader, header, body = last_message(pa.record_batch({"column": pa.array([*range(76), None], pa.uint16())}))
    places = [at for at in range(len(header)) if header[at : at + 8] == i64(77)]
    assert len(places) == 2
    for place in places:
        for wrong in (-1, 76, 78, 100, 101, 1 << 40, -(1 << 63), (1 << 63) - 1):
            with pytest.raises(InvalidValueError):
                reader.feed(header[:place] + i64(wrong) + header[place + 8 :], body)
    reader, header, body = last_message(pa.record_batch({"column": pa.array(range(77), pa.uint16())}))
    assert header.count(i64(0, 154)) == 1
    for wrong in ((0, 152), (4, 154), (-8, 154), (1 << 40, 154), (0, 1 << 62), (0, -154), (8, 1 << 10)):
        with pytest.raises(InvalidValueError, match=r"^column 'column': a buffer"):
            reader.feed(header.replace(i64(0, 154), i64(*wrong)), body)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_buffers(compression):
    """The length that a buffer states is refused before anything is decompressed, or if it is not the real one."""
    size = MOST_BYTES // 2
    batch = pa.record_batch({"column": pa.array(np.zeros(size, np.uint8))})
    reader, header, body = last_message(batch, compression=compression)
    assert reader.feed(header, body).equals(batch)
    assert body.startswith(i64(size))
    wrong = [i64(each) + body[8:] for each in (size - 1, size + 1, -2, MOST_BYTES + 1, 1 << 62, (1 << 63) - 1)]
    for each in (*wrong, body[:8] + bytes(len(body) - 8)):
        with pytest.raises(InvalidValueError, match=r"^column 'column': "):
            reader.feed(header, each)
    large = last_message(pa.record_batch({"column": np.zeros(1 << 22, np.uint8)}), compression=compression)
    with pytest.raises(InvalidValueError, match=r"^column 'column': at most 1,048,576 bytes"):
        reader.feed(*large[1:])


LONG = pa.array(["x" * 20_000])
MANY = pa.array([0] * 300, "int32")
VIEW = pa.py_buffer((i32(20_000) + b"xxxx" + i32(0, 0)) * 300)
TWICE = pa.Array.from_buffers(pa.string_view(), 300, [None, VIEW, LONG.buffers()[2]])
_MOST, _WRITTEN_OUT = "at most 1,048,576 bytes may come at once", ".* at most 4,194,304 bytes when each is written out"


@pytest.mark.parametrize(
    ("array", "says"),
    [
        # Values that take no bytes count as well
        (pa.array(["x" * 20_000] * 60), _MOST),
        (pa.ListArray.from_arrays([0, 1 << 21], pa.nulls(1 << 21)), _MOST),
        (pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 21), 1 << 20), _MOST),
        (pa.array([[{}] * (1 << 21)]), _MOST),
        # Arrays that occur many times: a few KB of them would take GB if each were written out
        (pa.DictionaryArray.from_arrays(MANY, LONG), _WRITTEN_OUT),
        (pa.RunEndEncodedArray.from_arrays(pa.array([300]), LONG), _WRITTEN_OUT),
        (pa.RunEndEncodedArray.from_arrays(pa.array([300]), pa.array([["x" * 10_000] * 2])), _WRITTEN_OUT),
        (pa.ListViewArray.from_arrays(MANY, pa.array([1] * 300, "int32"), LONG), _WRITTEN_OUT),
        (pa.ListArray.from_arrays([0, 300], pa.DictionaryArray.from_arrays(MANY, LONG)), _WRITTEN_OUT),
        (TWICE, _WRITTEN_OUT),
    ],
    ids=lambda given: str(getattr(given, "type", "")),
)
def test_more_bytes_than_there_may_be(array, says):
    batch = pa.record_batch({"column": array})
    (found,) = read(stream_of([batch]))
    assert found.equals(batch)
    with pytest.raises(InvalidValueError, match=rf"^column 'column': {says}"):
        read(stream_of([batch]), most_bytes=MOST_BYTES)


def test_dictionaries_have_a_bound_together():
    """Of several columns, and with additions to one; one that replaces another counts alone."""
    parts = [pa.array([f"{i} {'x' * 200_000}"]) for i in range(6)]
    whole = [pa.concat_arrays(parts[:count]) for count in range(1, 7)]
    alone, grown = (
        [pa.record_batch({"a": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), each)}) for each in some]
        for some in (parts, whole)
    )
    several = pa.record_batch({f"c{i}": batch.column(0) for i, batch in enumerate(alone)})
    for batches, fits in ((alone, True), (grown[:5], True), (grown, False), ([several], False)):
        stream = stream_of(batches, emit_dictionary_deltas=batches is not alone)
        with contextlib.nullcontext() if fits else pytest.raises(InvalidValueError, match=r"at most .* bytes"):
            assert len(read(stream, most_bytes=MOST_BYTES)) == len(batches)


def test_messages_that_may_not_come_now():
    schema, dictionary, batch = messages_in(stream_of([pa.record_batch({"column": IN_DICTIONARY})]))
    reader = IpcReader()
    for message in (batch, dictionary):
        with pytest.raises(InvalidValueError, match="begin with a schema"):
            reader.feed(*message)
    assert reader.schema is None
    assert reader.feed(*schema) is None
    for message, says in ((schema, "one schema"), (batch, "column 'column': its dictionary must come before it")):
        with pytest.raises(InvalidValueError, match=says):
            reader.feed(*message)
    for header in (b"\0", b"\xff" * 40, bytes(40), *(batch.header[:end] for end in range(len(batch.header)))):
        with pytest.raises((InvalidValueError, InvalidTypeError)):
            reader.feed(header, batch.body)


def test_any_byte_of_a_schema_may_be_wrong():
    ((header, _), *_) = messages_in(stream_of([pa.record_batch({"column": pa.array([1])})]))
    told = set()
    for place, byte in itertools.product(range(len(header)), (0, 1, 2, 4, 5, 128, 255)):
        try:
            IpcReader().feed(header[:place] + bytes([byte]) + header[place + 1 :], b"")
        except (InvalidValueError, InvalidTypeError) as error:
            told.add(str(error))
    for says in ("must be of version 4 or 5", "must be a schema, a dictionary or a record batch", "little-endian"):
        assert any(says in each for each in told)


def test_bodies_lie_anywhere_and_rows_have_a_bound():
    batch = pa.record_batch({"column": pa.array([1, None, 3]), "text": TEXTS})
    reader, header, body = last_message(batch)
    for before in range(9):
        found = reader.feed(header, memoryview(bytes(before) + body)[before:])
        assert found.equals(batch)
        assert found.column("column").buffers()[1].address % 8 == 0
    assert len(read(stream_of([batch]), most_rows=3)) == 1
    with pytest.raises(InvalidValueError, match=r"at most 2 rows, not 3"):
        read(stream_of([batch]), most_rows=2)


def schema_read(schema: pa.Schema) -> pa.Schema:
    (message,) = messages_in(schema.serialize())
    reader = IpcReader()
    reader.feed(*message)
    return reader.schema


def test_schemas_have_bounds():
    def nested(depth: int) -> pa.Schema:
        kind = pa.int8()
        for _ in range(depth - 1):
            kind = pa.list_(kind)
        return pa.schema({"column": kind})

    assert len(schema_read(pa.schema([(f"c{i}", pa.int8()) for i in range(10_000)]))) == 10_000
    schema_read(nested(64))
    for schema, says in (
        (pa.schema([(f"c{i}", pa.list_(pa.int8())) for i in range(5_001)]), "at most 10,000 fields"),
        (nested(65), "at most 64 columns deep"),
        (pa.schema([("column", pa.int8())], {"more": "x" * (4 << 20)}), "at most 4,194,304 bytes"),
    ):
        with pytest.raises(InvalidValueError, match=says):
            schema_read(schema)


@pytest.mark.parametrize("unit", [0, 1])
def test_types_that_python_does_not_have(unit):
    ((header, _),) = messages_in(pa.schema([("column", pa.month_day_nano_interval())]).serialize())
    table = struct.pack("<3H", 6, 8, 6)  # of the type: it has one field, the unit
    assert header.count(table) == 1
    place = header.index(struct.pack("<h", 2), header.index(table) + 6)
    with pytest.raises(InvalidTypeError, match=r"^column 'column': values of type .*_interval cannot be used"):
        IpcReader().feed(header[:place] + struct.pack("<h", unit) + header[place + 2 :])


def test_texts_of_schemas():
    schema = pa.schema([pa.field("column", pa.timestamp("us", "Europe/Rome"))])
    assert schema_read(schema) == schema
    ((header, body),) = messages_in(schema.serialize())
    for text in (b"column", b"Rome"):
        with pytest.raises(InvalidValueError, match=r"damaged"):
            IpcReader().feed(header.replace(text, b"\xff" * len(text)), body)
    metadata = {"ARROW:extension:name": "arrow.fixed_shape_tensor", "ARROW:extension:metadata": "[" * 100_000}
    with pytest.raises(InvalidTypeError, match=r"^column 'column': the metadata of its type"):
        schema_read(pa.schema([pa.field("column", pa.list_(pa.int8(), 4), metadata=metadata)]))


def header_of_shared_fields(count: int) -> bytes:
    """A schema of structs, each with the next one within it twice."""
    data = bytearray(4)

    def put(form: str, *numbers: int) -> int:
        at = len(data)
        data.extend(struct.pack(f"<{form}", *numbers))
        return at

    # Tables say how far back it is to where their fields are told, and refer forward to others
    of_message, of_schema = put("6H", 12, 16, 4, 6, 8, 0), put("4H", 8, 8, 0, 4)
    of_field, of_struct = put("8H", 16, 16, 0, 0, 12, 4, 0, 8), put("2H", 4, 4)
    message = put("ihBxI", len(data) - of_message, 4, 1, 4)
    put("iIII", len(data) - of_schema, 4, 1, 4)
    for number in range(count):
        put("iIIB3x", len(data) - of_field, 24, 8, 13)
        put("3I", 2 * (number < count - 1), 12, 8)
        put("i", len(data) - of_struct)
    data[:4] = struct.pack("<I", message)
    return bytes(data)


def test_fields_that_are_in_many_places():
    """In 1.6 KB there are 2^50 of them."""
    reader = IpcReader()
    reader.feed(header_of_shared_fields(4))
    assert str(reader.schema.types[0]).count("struct<") == 2**4 - 1
    with pytest.raises(InvalidValueError, match=r"header of an Arrow message is damaged"):
        IpcReader().feed(header_of_shared_fields(50))
