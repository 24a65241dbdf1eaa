"""Arrow IPC messages as anyone may send them: sound ones read as Arrow itself reads them, all others are errors."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.arrow_messages import TYPES, array_of, messages_in, stream_of

from tagmatch.files.ipc import IpcReader

COMPRESSIONS = st.sampled_from([None, "lz4", "zstd"])


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
        assert mine.nbytes >= 0


@settings(max_examples=100)
@given(kinds=st.lists(TYPES, max_size=3), seed=st.integers(0, 10**6), rows=st.integers(0, 9), compression=COMPRESSIONS)
def test_what_arrow_writes(kinds, seed, rows, compression):
    rnd = random.Random(seed)
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(kinds)])
    batch = pa.RecordBatch.from_arrays([array_of(rnd, kind, rows) for kind in kinds], schema=schema)
    rows = len(batch)
    begin = rnd.randint(0, rows)
    check_same(stream_of([batch, batch.slice(begin, rnd.randint(0, rows - begin))], compression=compression))


def _batch_message(batch: pa.RecordBatch) -> tuple[IpcReader, bytes, bytes]:
    """A reader that has had the schema, and the message of the batch."""
    schema, *others = messages_in(stream_of([batch]))
    reader = IpcReader(most_bytes=1 << 20, most_rows=100)
    for message in (schema, *others[:-1]):
        assert reader.feed(*message) is None
    return reader, *others[-1]


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.map_("string", "int8")])
def test_no_rows_with_an_offset_far_away(kind):
    """Arrow's own validation takes it, and whoever then asks for the size of the batch follows it."""
    reader, header, body = _batch_message(pa.record_batch({"tags": pa.array([], kind)}))
    far = (
        struct.pack("<q", 1 << 40) + body[8:] if pa.types.is_large_list(kind) else struct.pack("<i", 1 << 30) + body[4:]
    )
    batch = reader.feed(header, far)
    assert (len(batch), batch.nbytes >= 0, batch.schema.types) == (0, True, [kind])
    assert batch.column(0).to_pylist() == []
    assert len(batch.column(0).values) == 0
