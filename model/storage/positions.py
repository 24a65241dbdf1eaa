"""Where clients are, in a file beside an index: state that no snapshot has.

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
from tagmatch.model.storage.durable import make_folder, replace_file
from tagmatch.model.storage.file_lock import locked
from tagmatch.model.storage.format import LOCK, POSITIONS

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


def save_positions(folder: Path, positions: Positions, *, plane: bool) -> None:
    """Write positions to the folder of an index in one step; they are on the disk when this returns.

    The folder is made if need be. Another writer is waited for.

    Raises
    ------
    TagMatchError
        The file cannot be written.
    """
    columns = [positions.keys, pa.array(positions.lon), pa.array(positions.lat)]
    schema = pa.schema([(name, column.type) for name, column in zip(_names(plane=plane), columns, strict=True)])
    schema = schema.with_metadata({_CHECKSUM: _checksum(*columns)})
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        make_folder(folder)
        with locked(folder / LOCK):
            replace_file(folder / POSITIONS, sink.getvalue().to_pybytes())
    except (OSError, pa.ArrowException) as error:
        raise TagMatchError(f"cannot write the positions to {folder / POSITIONS}: {error}") from error


def open_positions(folder: Path, key_type: KeyType, *, plane: bool) -> Positions | None:
    """The positions in the folder of an index; `None` if there are none.

    Raises
    ------
    IndexCorruptError
        The file is damaged, or has other columns or keys.
    InvalidValueError
        They are on the plane, and not on the sphere, or the other way round.
    TagMatchError
        The file cannot be read.
    """
    file = folder / POSITIONS
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TagMatchError(f"cannot read the positions in {file}: {error}") from error
    names, positions = _read(text, key_type, f"the positions in {file}")
    if names != _names(plane=plane) and len(positions.keys):
        raise InvalidValueError(
            f"the positions in {file} are on the {'sphere' if plane else 'plane'}: open the index with "
            f"plane={not plane}, or remove the file"
        )
    return positions


def check_positions(text: bytes, where: str) -> None:
    """See that a file has positions, of any keys; IndexCorruptError tells where it is."""
    _read(text, None, where)


def _read(text: bytes, key_type: KeyType | None, where: str) -> tuple[list[str], Positions]:
    """The names of the columns, and what is in them."""
    try:
        with pa.ipc.open_file(pa.BufferReader(text)) as reader:
            schema = reader.schema
            (batch,) = (reader.get_batch(number) for number in range(reader.num_record_batches))
        batch.validate(full=True)
        keys, lon, lat = batch.columns
        names = list(schema.names)
        sound = names in (_names(plane=False), _names(plane=True)) and lon.type == lat.type == pa.float64()
        sound = sound and keys.type in (_TYPES.values() if key_type is None else [_TYPES[key_type]])
        sound = sound and (schema.metadata or {}).get(_CHECKSUM) == _checksum(keys, lon, lat)
    except (pa.ArrowException, KeyError, ValueError, OSError):
        sound = False
    if not sound:
        raise IndexCorruptError(
            f"{where} are damaged, or not those of an index with such keys: remove the file to go on without them, and "
            "have the clients move again"
        )
    return names, Positions(keys, np.asarray(lon), np.asarray(lat))


def _names(*, plane: bool) -> list[str]:
    return ["key", "x", "y"] if plane else ["key", "lon", "lat"]
