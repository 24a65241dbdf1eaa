"""Where clients are, in a file beside an index: state that no snapshot has."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import F64Array
from tagmatch.model.errors import IndexCorruptError, TagMatchError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.durable import replace_file

#: The file in the folder of an index: an Arrow IPC file with columns `key`, `lon` and `lat`
POSITIONS = "POSITIONS.arrow"

_CHECKSUM = b"xxh64"
_TYPES = {"integer": pa.uint64(), "string": pa.large_string()}


class Positions(NamedTuple):
    """Where some clients are.

    Attributes
    ----------
    keys : pyarrow.Array
        Of uint64, or of large strings.
    lon, lat : float64 arrays
        Degrees, or x and y on the plane.
    """

    keys: pa.Array
    lon: F64Array
    lat: F64Array


def _checksum(keys: pa.Array, lon: pa.Array, lat: pa.Array) -> bytes:
    """Of all values, wherever they are in memory."""
    found = xxhash.xxh64()
    if pa.types.is_large_string(keys.type):
        offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys) + 1]
        found.update(np.diff(offsets).tobytes())
        found.update(memoryview(keys.buffers()[2] or b"")[offsets[0] : offsets[-1]] if len(keys) else b"")
    else:
        found.update(keys.to_numpy())
    found.update(lon.to_numpy())
    found.update(lat.to_numpy())
    return found.hexdigest().encode()


def save_positions(file: Path, positions: Positions) -> None:
    """Write positions in one step; they are on the disk when this returns.

    Raises
    ------
    TagMatchError
        The file cannot be written.
    """
    columns = [positions.keys, pa.array(positions.lon), pa.array(positions.lat)]
    schema = pa.schema([("key", columns[0].type), ("lon", pa.float64()), ("lat", pa.float64())])
    schema = schema.with_metadata({_CHECKSUM: _checksum(*columns)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    try:
        replace_file(file, sink.getvalue().to_pybytes())
    except OSError as error:
        raise TagMatchError(f"cannot write the positions to {file}: {error}") from error


def open_positions(file: Path, key_type: KeyType) -> Positions | None:
    """The positions in a file; `None` if there is none.

    Raises
    ------
    IndexCorruptError
        It is damaged, or has other columns or keys.
    TagMatchError
        It cannot be read.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TagMatchError(f"cannot read the positions in {file}: {error}") from error
    try:
        with pa.ipc.open_file(pa.BufferReader(text)) as reader:
            schema = reader.schema
            (batch,) = (reader.get_batch(number) for number in range(reader.num_record_batches))
        keys, lon, lat = (batch.column(name) for name in ("key", "lon", "lat"))
        batch.validate(full=True)
        sound = keys.type == _TYPES[key_type] and lon.type == lat.type == pa.float64()
        sound = sound and (schema.metadata or {}).get(_CHECKSUM) == _checksum(keys, lon, lat)
    except (pa.ArrowException, KeyError, ValueError, OSError):
        sound = False
    if not sound:
        raise IndexCorruptError(
            f"the positions in {file} are damaged, or not those of an index with such keys: remove the file to go on "
            "without them, and have the clients move again"
        )
    return Positions(keys, np.asarray(lon), np.asarray(lat))
