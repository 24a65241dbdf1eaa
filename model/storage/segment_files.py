"""The files of a segment: one Arrow IPC file per table, memory-mapped when they are read, and one for its deletions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.deletions import Deletions
from tagmatch.model.errors import IndexCorruptError, IndexVersionError, TagMatchError
from tagmatch.model.kernels.reserved import areas_among, has_reserved
from tagmatch.model.kernels.signature import signatures_of
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage.durable import sync
from tagmatch.model.storage.format import (
    ADVICE,
    AREAS,
    CONSTRAINTS,
    DELETED_PREFIX,
    EXPIRES,
    SEGMENT_PREFIX,
    Entry,
    Manifest,
    checksum_of_file,
    key_type_of,
)
from tagmatch.model.tables import KeyTable, Segment, TagsetTable, Vocabulary

_TABLES = ("vocabulary", "tagsets", "keys", "partitions")

#: Accepts a file as the manifest describes it, or raises IndexCorruptError
Check = Callable[[Path, Entry], None]


def write_segment(segment: Segment, folder: Path) -> Entry:
    """Write and sync the tables, in a new folder in this one; returns what manifests say of the segment."""
    files, whole = {}, xxhash.xxh3_64()
    unnamed = folder / "segment"
    unnamed.mkdir()
    unnamed.chmod(0o755)
    for table_name, table in tables_of(segment):
        file = unnamed / f"{table_name}.arrow"
        files[file.name] = _write_table(table, file)
        whole.update(f"{file.name} {files[file.name]['xxh3_64']}\n".encode())
    sync(unnamed)
    name = SEGMENT_PREFIX + whole.hexdigest()
    unnamed.rename(folder / name)
    tags = len(segment.vocabulary)
    entry: Entry = {"name": name, "rows": len(segment), "seed": segment.vocabulary.seed, "tags": tags, "files": files}
    tags_of_segment = segment.vocabulary.tags
    if has_reserved(tags_of_segment):
        entry[CONSTRAINTS] = True
        if areas_among(tags_of_segment).any():
            entry[AREAS] = True
    return entry


def write_deletions(deletions: Deletions, rows: int, folder: Path) -> Entry:
    """Write and sync which of the rows of a segment are deleted; returns what manifests say of that file."""
    flags = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(deletions.bits)])
    file = folder / "deleted"
    written = _write_table(_table(deleted=flags), file)
    name = f"{DELETED_PREFIX}{written['xxh3_64']}.arrow"
    file.rename(folder / name)
    return {"name": name, "rows": deletions.count, **written}


def _write_table(table: pa.Table, file: Path) -> Entry:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    checksum = checksum_of_file(file)
    sync(file)
    return {"bytes": file.stat().st_size, "xxh3_64": checksum}


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
    if segment.keys.expires is not None:
        yield Path(EXPIRES).stem, _table(expires=pa.array(segment.keys.expires))
    yield "partitions", _table(**rules_of(segment.options).to_arrow(segment.partitions))


def _table(**columns: pa.Array) -> pa.Table:
    return pa.table([*columns.values()], pa.schema([(name, array.type) for name, array in columns.items()]))


def read_segments(folder: Path, manifest: Manifest, check: Check) -> tuple[Segment, ...]:
    """The segments of which an index folder has the files that `manifest` names, each file if `check` accepts it.

    Raises
    ------
    IndexCorruptError
        A file is missing, or `check` does not accept it.
    IndexVersionError
        An older version has stored tags that stand for constraints now.
    TagMatchError
        A file cannot be read.
    """
    options = LayoutOptions(manifest["layout"], manifest["max_partition_size"])
    key_type = key_type_of(manifest)
    return tuple(_read_segment(folder, entry, options, key_type, check) for entry in manifest["segments"])


def _read_segment(folder: Path, entry: Entry, options: LayoutOptions, key_type: KeyType, check: Check) -> Segment:
    own, files = folder / entry["name"], entry["files"]
    wanted = _TABLES if key_type == "integer" else (*_TABLES, "key_names")
    tables = {name: _read_table(own / f"{name}.arrow", files[f"{name}.arrow"], check) for name in wanted}
    expires = to_numbers(_read_table(own / EXPIRES, files[EXPIRES], check)["expires"]) if EXPIRES in files else None
    vocabulary, tagsets = tables["vocabulary"], tables["tagsets"]
    tags = to_strings(vocabulary["tag"])
    if CONSTRAINTS not in entry and has_reserved(tags):
        raise IndexVersionError(
            f"{own} has tags that begin with U+0000 and +, - or =, which stand for constraints since format 5; with "
            "the version of tagmatch that wrote the index, store these sets with other tags"
        )
    return Segment(
        options,
        Vocabulary(
            tags,
            to_numbers(vocabulary["hash"]),
            to_numbers(vocabulary["frequency"]),
            entry["seed"],
        ),
        TagsetTable(to_words(tagsets["signature"]), to_lists(tagsets["ranks"])),
        KeyTable(
            to_lists(tables["keys"]["keys"]),
            None if key_type == "integer" else to_strings(tables["key_names"]["name"]),
            expires,
        ),
        rules_of(options).from_arrow(tables["partitions"], len(tagsets["ranks"])),
        _read_deletions(folder, entry["deleted"], check) if "deleted" in entry else None,
        entry["name"],
    )


def _read_deletions(folder: Path, entry: Entry, check: Check) -> Deletions:
    flags = _read_table(folder / entry["name"], entry, check)["deleted"]
    bits = np.frombuffer(flags.buffers()[1], np.uint8, count=-(-len(flags) // 8))
    return Deletions(bits, entry["rows"])


def _read_table(file: Path, expected: Entry, check: Check) -> dict[str, pa.Array]:
    """Columns of a table, each one chunk of the memory-mapped file, which `check` has accepted."""
    with _telling_errors(file):
        check(file, expected)
        # Another program may remove it after that, too
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    return {
        name: column.chunk(0) if column.num_chunks else pa.array([], column.type)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def check_file(file: Path, expected: Entry, check: Check) -> None:
    """See that a file is there, and that `check` accepts it; errors as `read_segments`."""
    with _telling_errors(file):
        check(file, expected)


@contextlib.contextmanager
def _telling_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise IndexCorruptError(f"{file} is missing; {ADVICE}") from None
    except OSError as error:
        raise TagMatchError(f"cannot read {file}: {error}") from error
