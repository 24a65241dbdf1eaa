"""The files of a snapshot: one Arrow IPC file per table, memory-mapped when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.errors import IndexCorruptError, TagMatchError
from tagmatch.model.kernels.signature import signatures_of
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import LayoutOptions
from tagmatch.model.storage.durable import sync
from tagmatch.model.storage.format import ADVICE, SNAPSHOT_PREFIX, checksum_of_file, key_type_of
from tagmatch.model.tables import KeyTable, Segment, TagsetTable, Vocabulary

_TABLES = ("vocabulary", "tagsets", "keys", "partitions")

#: Accepts a file as the manifest describes it, or raises IndexCorruptError
Check = Callable[[Path, dict[str, Any]], None]


def write_files(segment: Segment, folder: Path) -> dict[str, Any]:
    """Write and sync the tables; returns the manifest, without its own checksum."""
    folder.chmod(0o755)
    whole = xxhash.xxh3_64()
    files = {}
    for name, table in tables_of(segment):
        file = folder / f"{name}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        checksum = checksum_of_file(file)
        sync(file)
        files[file.name] = {"bytes": file.stat().st_size, "xxh3_64": checksum}
        whole.update(f"{file.name} {checksum}\n".encode())
    sync(folder)
    manifest = {
        "format": 1,
        "layout": segment.options.layout,
        "max_partition_size": segment.options.max_partition_size,
        "seed": segment.vocabulary.seed,
        "sets": len(segment),
        "tags": len(segment.vocabulary),
        "snapshot": SNAPSHOT_PREFIX + whole.hexdigest(),
        "files": files,
    }
    return manifest if segment.keys.names is None else {**manifest, "format": 2, "key_type": segment.keys.type}


def tables_of(segment: Segment) -> Iterator[tuple[str, pa.Table]]:
    """The tables as they are written, by the names of their files."""
    vocabulary, tagsets = segment.vocabulary, segment.tagsets
    yield (
        "vocabulary",
        _table(
            tag=from_strings(vocabulary.tags),
            hash=pa.array(vocabulary.hashes),
            frequency=pa.array(vocabulary.frequencies),
        ),
    )
    signatures = tagsets.signatures
    if signatures is None:
        signatures = signatures_of(tagsets.ranks, vocabulary.hashes)
    yield "tagsets", _table(signature=from_words(signatures), ranks=from_lists(tagsets.ranks))
    yield "keys", _table(keys=from_lists(segment.keys.keys))
    if segment.keys.names is not None:
        yield "key_names", _table(name=from_strings(segment.keys.names))
    yield "partitions", _table(**rules_of(segment.options).to_arrow(segment.partitions))


def _table(**columns: pa.Array) -> pa.Table:
    return pa.table([*columns.values()], pa.schema([(name, array.type) for name, array in columns.items()]))


def read_files(folder: Path, manifest: dict[str, Any], check: Check) -> Segment:
    """The snapshot of which a folder has the files that `manifest` names, each if `check` accepts it.

    Raises
    ------
    IndexCorruptError
        A file is missing, or `check` does not accept it.
    TagMatchError
        A file cannot be read.
    """
    files = manifest["files"]
    key_type = key_type_of(manifest)
    wanted = _TABLES if key_type == "integer" else (*_TABLES, "key_names")
    tables = {name: _read_table(folder / f"{name}.arrow", files[f"{name}.arrow"], check) for name in wanted}
    vocabulary, tagsets = tables["vocabulary"], tables["tagsets"]
    options = LayoutOptions(manifest["layout"], manifest["max_partition_size"])
    return Segment(
        options,
        Vocabulary(
            to_strings(vocabulary["tag"]),
            to_numbers(vocabulary["hash"]),
            to_numbers(vocabulary["frequency"]),
            manifest["seed"],
        ),
        TagsetTable(to_words(tagsets["signature"]), to_lists(tagsets["ranks"])),
        KeyTable(
            to_lists(tables["keys"]["keys"]), None if key_type == "integer" else to_strings(tables["key_names"]["name"])
        ),
        rules_of(options).from_arrow(tables["partitions"], len(tagsets["ranks"])),
    )


def _read_table(file: Path, expected: dict[str, Any], check: Check) -> dict[str, pa.Array]:
    """Columns of a table, each one chunk of the memory-mapped file, which `check` has accepted."""
    try:
        check(file, expected)
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    except FileNotFoundError:
        raise IndexCorruptError(f"{file} is missing; {ADVICE}") from None
    except OSError as error:
        raise TagMatchError(f"cannot read {file}: {error}") from error
    return {
        name: column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
