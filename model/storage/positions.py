"""The positions of clients, in a file next to an index: state that no snapshot has.

It is an Arrow IPC file with columns `key`, `lon` and `lat`, or `key`, `x` and `y` on the plane.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import F64Array
from tagmatch.model.errors import IndexCorruptError, InvalidValueError, TagMatchError
from tagmatch.model.options import KeyType
from tagmatch.model.parallel import threads_of_arrow
from tagmatch.model.storage.byte_store import ByteStore, ChangeableStore
from tagmatch.model.storage.format import POSITIONS
from tagmatch.model.where.areas import MAX_LAT, MAX_LON

_CHECKSUM = b"xxh64"
_TYPES: dict[pa.DataType, KeyType] = {pa.uint64(): "integer", pa.large_string(): "string"}
# On the sphere, and on the plane: columns, and how great coordinates may be
_NAMES = (["key", "lon", "lat"], ["key", "x", "y"])
_LIMITS = ((MAX_LON, MAX_LAT), (np.finfo(np.float64).max,) * 2)


class Positions(NamedTuple):
    """Where some clients are."""

    keys: pa.Array  # of uint64, or of large strings
    lon: F64Array  # degrees, or x and y on the plane
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


def save_positions(files: ChangeableStore, positions: Positions, *, plane: bool) -> None:
    """Write positions to the place of an index, which is made if need be, in one step; they last when this returns."""
    columns = [positions.keys, pa.array(positions.lon), pa.array(positions.lat)]
    batch = pa.record_batch(columns, _NAMES[plane]).replace_schema_metadata({_CHECKSUM: _checksum(*columns)})
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        files.prepare()
        with files.lock():
            files.write(POSITIONS, sink.getvalue().to_pybytes())
    except (OSError, pa.ArrowException) as error:
        raise TagMatchError(f"cannot write the positions to {files}/{POSITIONS}: {error}") from error


def open_positions(files: ByteStore, key_type: KeyType, *, plane: bool) -> Positions | None:
    """The positions instead of an index; else `None`; IndexCorruptError, TagMatchError.

    InvalidValueError: they are on the plane, and not on the sphere, or the other way round; or have other keys.
    """
    if (found := _found_in(files)) is None:
        return None
    positions, on_plane = found
    saved, wanted = positions.keys.type, next(kind for kind, own in _TYPES.items() if own == key_type)
    where = f"the positions in {files}/{POSITIONS}"
    if not len(positions.keys):
        return positions._replace(keys=pa.array([], wanted))
    if on_plane != plane:
        raise InvalidValueError(
            f"{where} are on the {'sphere' if plane else 'plane'}: open the index with plane={not plane}, or remove "
            "the file"
        )
    if saved != wanted:
        raise InvalidValueError(
            f'{where} are of clients whose keys have key_type "{_TYPES[saved]}", not "{key_type}": open the '
            f'index with key_type="{_TYPES[saved]}", or remove the file and have the clients move again'
        )
    return positions


def key_type_of_positions(files: ByteStore) -> KeyType | None:
    """What the keys are of clients instead of an index; `None` if none are. Errors as `open_positions`."""
    found = _found_in(files)
    return None if found is None or not len(found[0].keys) else _TYPES[found[0].keys.type]


def _found_in(files: ByteStore) -> tuple[Positions, bool] | None:
    try:
        text = files.read(POSITIONS)
    except FileNotFoundError:
        return None
    return read_positions(text, f"the positions in {files}/{POSITIONS}")


def read_positions(text: bytes, where: str) -> tuple[Positions, bool]:
    """The contents of a file, and whether they are on the plane; IndexCorruptError names the place."""
    try:
        with threads_of_arrow(), pa.ipc.open_file(pa.BufferReader(text)) as reader:
            schema = reader.schema
            (batch,) = (reader.get_batch(number) for number in range(reader.num_record_batches))
        batch.validate(full=True)
        keys, lon, lat = batch.columns
        plane = bool(_NAMES.index(list(schema.names)))
        sound = lon.type == lat.type == pa.float64() and keys.type in _TYPES
        sound = sound and not any(column.null_count for column in batch.columns)
        sound = sound and (schema.metadata or {}).get(_CHECKSUM) == _checksum(keys, lon, lat)
        found = Positions(keys, np.asarray(lon), np.asarray(lat))
        for values, most in zip(found[1:], _LIMITS[plane], strict=True):
            sound = sound and bool((np.abs(values) <= most).all())  # as those that are given to `move`
    except MemoryError:
        raise
    except (pa.ArrowException, KeyError, ValueError, TypeError, OSError):
        sound = False
    if not sound:
        raise IndexCorruptError(
            f"{where} are damaged: remove the file to go on without them, and have the clients move again"
        )
    return found, plane
