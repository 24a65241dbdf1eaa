"""The positions of clients, in a file next to an index: state that no snapshot has.

It is an Arrow IPC file with columns `key`, `lon` and `lat`, or `key`, `x` and `y` on the plane.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import F64Array
from tagmatch.model.errors import IndexCorruptError, InvalidValueError, TagMatchError
from tagmatch.model.options import KeyType
from tagmatch.model.parallel import threads_of_arrow
from tagmatch.model.storage.files import locked, make_folder, plain_file, replace_file
from tagmatch.model.storage.format import LOCK, POSITIONS
from tagmatch.model.where.areas import MAX_LAT, MAX_LON

_CHECKSUM = b"xxh64"
_TYPES: dict[KeyType, pa.DataType] = {"integer": pa.uint64(), "string": pa.large_string()}


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


def save_positions(folder: Path, positions: Positions, *, plane: bool) -> None:
    """Write positions to the folder of an index in one step; they are on the disk when this returns.

    The folder is made if need be. Another writer is waited for.
    """
    columns = [positions.keys, pa.array(positions.lon), pa.array(positions.lat)]
    schema = pa.schema([(name, column.type) for name, column in zip(_names(plane=plane), columns, strict=True)])
    schema = schema.with_metadata({_CHECKSUM: _checksum(*columns)})
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        make_folder(folder)
        with locked(folder, LOCK):
            replace_file(folder / POSITIONS, sink.getvalue().to_pybytes())
    except (OSError, pa.ArrowException) as error:
        raise TagMatchError(f"cannot write the positions to {folder / POSITIONS}: {error}") from error


def open_positions(folder: Path, key_type: KeyType, *, plane: bool) -> Positions | None:
    """The positions in the folder of an index; else `None`; IndexCorruptError, TagMatchError.

    InvalidValueError: they are on the plane, and not on the sphere, or the other way round; or have other keys.
    """
    found = _found_in(folder)
    if found is None:
        return None
    names, positions = found
    where = f"the positions in {folder / POSITIONS}"
    if len(positions.keys) and names != _names(plane=plane):
        raise InvalidValueError(
            f"{where} are on the {'sphere' if plane else 'plane'}: open the index with plane={not plane}, or remove "
            "the file"
        )
    if positions.keys.type != _TYPES[key_type]:
        if len(positions.keys):
            raise InvalidValueError(
                f'{where} are of clients whose keys have key_type "{_key_type(positions)}", not "{key_type}": open the '
                f'index with key_type="{_key_type(positions)}", or remove the file and have the clients move again'
            )
        return positions._replace(keys=pa.array([], _TYPES[key_type]))
    return positions


def key_type_of_positions(folder: Path) -> KeyType | None:
    """What the keys are of clients in the folder of an index; `None` if none are. Errors as `open_positions`."""
    found = _found_in(folder)
    return None if found is None or not len(found[1].keys) else _key_type(found[1])


def check_positions(text: bytes, where: str) -> None:
    """Check that a file has positions, of any keys; IndexCorruptError says where it is."""
    _read(text, where)


def _key_type(positions: Positions) -> KeyType:
    return next(key_type for key_type, kind in _TYPES.items() if kind == positions.keys.type)


def _found_in(folder: Path) -> tuple[list[str], Positions] | None:
    file = folder / POSITIONS
    try:
        with plain_file(folder, POSITIONS) as opened:
            text = opened.readall()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TagMatchError(f"cannot read the positions in {file}: {error}") from error
    return _read(text, f"the positions in {file}")


def _read(text: bytes, where: str) -> tuple[list[str], Positions]:
    """The names of the columns, and their contents."""
    try:
        with threads_of_arrow(), pa.ipc.open_file(pa.BufferReader(text)) as reader:
            schema = reader.schema
            (batch,) = (reader.get_batch(number) for number in range(reader.num_record_batches))
        batch.validate(full=True)
        keys, lon, lat = batch.columns
        names = list(schema.names)
        sound = names in (_names(plane=False), _names(plane=True)) and lon.type == lat.type == pa.float64()
        sound = sound and keys.type in _TYPES.values() and not any(column.null_count for column in batch.columns)
        sound = sound and (schema.metadata or {}).get(_CHECKSUM) == _checksum(keys, lon, lat)
        sound = sound and _are_somewhere(np.asarray(lon), np.asarray(lat), plane=names == _names(plane=True))
    except MemoryError:
        raise
    except (pa.ArrowException, KeyError, ValueError, OSError):
        sound = False
    if not sound:
        raise IndexCorruptError(
            f"{where} are damaged: remove the file to go on without them, and have the clients move again"
        )
    return names, Positions(keys, np.asarray(lon), np.asarray(lat))


def _are_somewhere(lon: F64Array, lat: F64Array, *, plane: bool) -> bool:
    """Whether all coordinates are in range, as those that are given to `move` have to be."""
    if plane:
        return bool(np.isfinite(lon).all() and np.isfinite(lat).all())
    return bool((np.abs(lon) <= MAX_LON).all() and (np.abs(lat) <= MAX_LAT).all())


def _names(*, plane: bool) -> list[str]:
    return ["key", "x", "y"] if plane else ["key", "lon", "lat"]
