"""The files of an index on disk, also with anything in manifests and tables, and right checksums."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pyarrow.fs import FileSelector

from tagmatch import TagMatch
from tagmatch.model.arrow import numpy_type
from tagmatch.model.storage.format import manifest_text

MANIFEST = "MANIFEST.json"
Manifest = dict[str, Any]


def make_index(
    path: Path, rows: Sequence[Any], removed: Sequence[Any] = (), *, expires: Any = None, **options: Any
) -> Path:
    """Add and remove rows of tags, key and perhaps an expression, as a program on one machine does."""
    if any(isinstance(row[1], str) for row in rows):
        options = {"key_type": "string", **options}
    with TagMatch(path, threads=2, device="cpu", durability="none", **options) as tm:
        for some, stage in ((rows, partial(tm.add_sets, expires=expires)), (removed, tm.remove_sets)):
            if some:
                tags, keys, *where = zip(*some, strict=True)
                stage(tags, keys, **({"where": where[0]} if where else {}))
        tm.consolidate()
    return path


def files_of(path: Path) -> list[Path]:
    """All with contents; locks have none."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name not in ("LOCK", "WRITER"))


def contents_of(path: Path) -> dict[str, bytes]:
    """What is in them, by their paths within the index."""
    return {str(file.relative_to(path)): file.read_bytes() for file in files_of(path)}


def unnamed_in(path: Path) -> list[str]:
    """Names in an index without staged changes that belong to nothing: no manifest has one."""
    manifest = "".join(file.read_text() for file in path.glob("MANIFEST*.json"))  # also of earlier snapshots
    names = {part for entry in path.rglob("*") for part in entry.relative_to(path).parts}
    always = {"LOCK", "WRITER", "MANIFEST.json", "POSITIONS.arrow"}
    return sorted(name for name in names - always if f'"{name}"' not in manifest)


def manifest_as_first(path: Path) -> bytes:
    """The manifest of an index, but its snapshot has number 1, after any others."""
    return manifest_text({**read_manifest(path), "number": 1})


def contents_as_first(path: Path) -> dict[str, bytes]:
    """The contents of its files, but its snapshot has number 1, after any others."""
    return contents_of(path) | ({MANIFEST: manifest_as_first(path)} if (path / MANIFEST).exists() else {})


# -- as a stranger makes them ------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> Manifest:
    """What the manifest of an index says, without its checksum."""
    found: Manifest = json.loads((path / MANIFEST).read_bytes())
    del found["checksum"]
    return found


def with_manifest(path: Path, change: Callable[[Manifest], object]) -> None:
    manifest = read_manifest(path)
    change(manifest)
    (path / MANIFEST).write_bytes(manifest_text(manifest))


def with_file(path: Path, name: str, contents: bytes) -> None:
    """Give a file of the current snapshot other contents, which the manifest has, too."""
    (path / name).write_bytes(contents)

    def change(manifest: Manifest) -> None:
        entries = {entry["name"]: entry for entry in manifest.get("staged", ())}
        for segment in manifest["segments"]:
            entries |= {f"{segment['name']}/{file}": entry for file, entry in segment["files"].items()}
            if deleted := segment.get("deleted"):
                entries[deleted["name"]] = deleted
        if name in entries:
            entries[name].update(bytes=len(contents), xxh3_64=xxhash.xxh3_64_hexdigest(contents))

    with_manifest(path, change)


def buffers_in(data: bytes, column: str) -> Iterator[tuple[pa.DataType, str, int, int]]:
    """The buffers of a column in the file of a table: type of the array, which buffer, its first and last byte."""
    whole = pa.py_buffer(data)
    array = pa.ipc.open_file(whole).read_all().column(column).chunk(0)
    while True:
        kind = array.type
        has_offsets = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        has_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        names = ["validity", "offsets", "text"] if has_offsets or has_text else ["validity", "values"]
        own = 1 if pa.types.is_fixed_size_list(kind) else 2 if has_offsets else 3
        for name, buffer in zip(names, array.buffers()[:own], strict=False):
            if buffer is not None:
                first = buffer.address - whole.address
                yield kind, name, first, first + buffer.size
        if not pa.types.is_nested(kind):
            return
        array = array.values


def numbers_in(data: bytes, column: str, what: str) -> tuple[bytearray, npt.NDArray[Any]]:
    """A copy of a file of a table, and the numbers in it of the offsets or values of a column, which can be changed."""
    copy = bytearray(data)
    for kind, name, first, last in buffers_in(data, column):
        if name == what:
            wide = pa.types.is_large_list(kind) or pa.types.is_large_string(kind)
            offsets = np.dtype(np.int64 if wide else np.int32)
            flags = np.dtype(np.uint8) if pa.types.is_boolean(kind) else None
            dtype = offsets if what == "offsets" else flags or numpy_type(kind)
            return copy, np.frombuffer(memoryview(copy)[first:last], dtype)
    raise AssertionError(f"{column} has no {what}")


def names(bucket: Any) -> list[str]:
    """All files in a bucket, by their paths."""
    found = bucket[0].get_file_info(FileSelector("", recursive=True))
    return sorted(info.path for info in found if info.is_file)
