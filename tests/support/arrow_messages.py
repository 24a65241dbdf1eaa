"""Arrow data of any type, and the messages of the IPC format that hold it."""

import random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st


class Message(NamedTuple):
    header: bytes
    body: bytes


def stream_of(batches: list[pa.RecordBatch], **options: Any) -> pa.Buffer:
    """Batches of one schema as Arrow writes them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def messages_in(stream: pa.Buffer) -> list[Message]:
    """The messages of a stream, as Flight has them."""
    source, found = pa.BufferReader(stream), []
    while True:
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return found
        body = b"" if message.body is None else message.body.to_pybytes()
        found.append(Message(message.metadata.to_pybytes(), body))


LEAVES = [
    pa.null(), pa.bool_(), pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view(), pa.binary(3),
    pa.binary(0), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.timestamp("us"), pa.duration("ms"),
    pa.timestamp("ns", "UTC"), pa.decimal32(5), pa.decimal64(12, 2), pa.decimal128(20), pa.decimal256(50, 3),
    pa.month_day_nano_interval(), pa.uuid(), pa.json_(), pa.bool8(),
]  # fmt: skip
_INDICES = st.sampled_from([pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64()])


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    several = st.lists(inner, max_size=3).map(lambda kinds: [pa.field(f"f{i}", kind) for i, kind in enumerate(kinds)])
    return st.one_of(
        *(inner.map(of) for of in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)),
        st.builds(pa.list_, inner, st.integers(0, 3)),
        several.map(pa.struct),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int8(), pa.large_string()]), inner),
        *(several.filter(bool).map(of) for of in (pa.sparse_union, pa.dense_union)),
        st.builds(pa.run_end_encoded, st.sampled_from([pa.int16(), pa.int32(), pa.int64()]), inner),
        st.builds(pa.dictionary, _INDICES, inner.filter(_may_be_in_dictionary), st.booleans()),
    )


def _may_be_in_dictionary(kind: pa.DataType) -> bool:
    """Whether Arrow itself reads what it has written."""
    return not (pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType))


TYPES = st.recursive(st.sampled_from(LEAVES), _nested, max_leaves=5)


def array_of(rnd: random.Random, kind: pa.DataType, length: int) -> pa.Array:
    """Values of any type, with nulls."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array_of(rnd, kind.storage_type, length))
    if pa.types.is_dictionary(kind):
        values = array_of(rnd, kind.value_type, rnd.randint(1, 4))
        places = pa.array([_or_null(rnd, rnd.randrange(len(values))) for _ in range(length)], kind.index_type)
        return pa.DictionaryArray.from_arrays(places, values, ordered=kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        places = {*rnd.sample(range(1, length + 1), rnd.randint(1, length)), length} if length else []
        ends = pa.array(sorted(places), kind.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, array_of(rnd, kind.value_type, len(ends)), kind)
    if pa.types.is_union(kind):
        return _union_of(rnd, kind, length)
    if not pa.types.is_nested(kind):
        return pa.array([_or_null(rnd, _value_of(rnd, kind)) for _ in range(length)], kind)
    there = [rnd.random() < 0.8 for _ in range(length)]
    validity = pa.array(there, pa.bool_()).buffers()[1] if length else None
    if pa.types.is_struct(kind):
        fields = [array_of(rnd, field.type, length) for field in kind]
        return pa.Array.from_buffers(kind, length, [validity], children=fields)
    if pa.types.is_fixed_size_list(kind):
        values = array_of(rnd, kind.value_type, length * kind.list_size)
        return pa.Array.from_buffers(kind, length, [validity], children=[values])
    sizes = np.array([rnd.choice((0, 0, 1, 2)) for _ in range(length)], int)
    offsets = np.append(0, np.cumsum(sizes))
    if pa.types.is_map(kind):
        keys = pa.array([_value_of(rnd, kind.key_type) for _ in range(offsets[-1])], kind.key_type)
        fields = [keys, array_of(rnd, kind.item_type, len(keys))]
        width, values = np.int32, pa.Array.from_buffers(kind.field(0).type, len(keys), [None], children=fields)
    else:
        width = np.int64 if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind) else np.int32
        values = array_of(rnd, kind.value_type, int(offsets[-1]))
    buffers = [validity, pa.py_buffer(offsets.astype(width))]
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        buffers = [validity, pa.py_buffer(offsets[:-1].astype(width)), pa.py_buffer(sizes.astype(width))]
    return pa.Array.from_buffers(kind, length, buffers, children=[values])


def _union_of(rnd: random.Random, kind: pa.DataType, length: int) -> pa.Array:
    codes = np.array([rnd.randrange(kind.num_fields) for _ in range(length)], np.int8)
    if kind.mode == "sparse":
        children = [array_of(rnd, kind.field(i).type, length) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(codes)], children=children)
    places = np.zeros(length, np.int32)
    for code in range(kind.num_fields):
        places[codes == code] = np.arange(np.count_nonzero(codes == code))
    children = [array_of(rnd, kind.field(i).type, np.count_nonzero(codes == i)) for i in range(kind.num_fields)]
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(codes), pa.py_buffer(places)], children=children)


def _or_null(rnd: random.Random, value: Any) -> Any:
    return None if rnd.random() < 0.2 else value


def _value_of(rnd: random.Random, kind: pa.DataType) -> Any:
    is_of = pa.types
    if is_of.is_null(kind):
        return None
    if is_of.is_boolean(kind):
        return rnd.random() < 0.5
    if is_of.is_floating(kind):
        return float(rnd.randrange(100))
    if is_of.is_fixed_size_binary(kind) and not is_of.is_decimal(kind):
        return rnd.randbytes(kind.byte_width)
    text = rnd.choice(("", "a", "ä", "a tag that is longer than a view has room for"))
    if is_of.is_string(kind) or is_of.is_large_string(kind) or is_of.is_string_view(kind):
        return text
    if is_of.is_binary(kind) or is_of.is_large_binary(kind) or is_of.is_binary_view(kind):
        return text.encode()
    if is_of.is_date64(kind):
        return 86_400_000 * rnd.randrange(100)
    if is_of.is_interval(kind):
        return pa.MonthDayNano([rnd.randrange(9), rnd.randrange(9), rnd.randrange(9)])
    return rnd.randrange(100)
