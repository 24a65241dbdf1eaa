"""The files of a segment: those of its tables, memory-mapped when they are read, and one for its deletions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import Strings
from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.deletions import Deletions
from tagmatch.model.errors import IndexCorruptError, IndexVersionError, TagMatchError
from tagmatch.model.kernels.reserved import areas_among, has_reserved
from tagmatch.model.kernels.signature import signatures_of
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage import table_files
from tagmatch.model.storage.durable import sync
from tagmatch.model.storage.format import (
    ADVICE,
    AREAS,
    CONSTRAINTS,
    DELETED_PREFIX,
    EXPIRES,
    SEGMENT_PREFIX,
    TABLE_SUFFIX,
    Entry,
    Manifest,
    key_type_of,
    parts_of,
)
from tagmatch.model.storage.table_files import Piece, TableFile, read_columns
from tagmatch.model.tables import KeyTable, Segment, TagsetTable, Vocabulary

_TABLES = ("vocabulary", "tagsets", "keys", "partitions")

#: Accepts a file as the manifest describes it, or raises IndexCorruptError
Check = Callable[[Path, Entry], None]


def write_segment(segment: Segment, folder: Path) -> Entry:
    """Write and sync the tables, in a new folder in this one; returns what manifests say of the segment."""
    files = {}
    unnamed = folder / "segment"
    unnamed.mkdir()
    unnamed.chmod(0o755)
    for table_name, table in tables_of(segment):
        whole = table_file(table_name, table)
        for number in range(whole.parts):
            name = whole.part_name(number)
            files[name] = whole.write(number, unnamed / name)
    sync(unnamed)
    entry = segment_entry(files, len(segment), len(segment.vocabulary), segment.vocabulary.seed)
    unnamed.rename(folder / entry["name"])
    return entry | kinds_of(segment.vocabulary.tags)


def table_file(table: str, columns: pa.Table, elsewhere: Mapping[int, Piece] | None = None) -> TableFile:
    """The file of a table with this name, cut where it is large; `elsewhere` as of `TableFile.of`."""
    return TableFile.of(f"{table}{TABLE_SUFFIX}", columns, table_files.PART_BYTES, elsewhere)


def segment_entry(files: Mapping[str, Entry], rows: int, tags: int, seed: int) -> Entry:
    """What manifests say of a segment with these files, in the order of the tables, but for `kinds_of`."""
    whole = xxhash.xxh3_64()
    for name, written in files.items():
        whole.update(f"{name} {written['xxh3_64']}\n".encode())
    name = SEGMENT_PREFIX + whole.hexdigest()
    return {"name": name, "rows": rows, "seed": seed, "tags": tags, "files": dict(files)}


def kinds_of(tags: Strings) -> Entry:
    """What manifests say of a segment some of whose tags stand for constraints, or for areas."""
    if not has_reserved(tags):
        return {}
    return {CONSTRAINTS: True, **({AREAS: True} if areas_among(tags).any() else {})}


def write_deletions(deletions: Deletions, rows: int, file: Path) -> Entry:
    """Write and sync which of the rows of a segment are deleted; returns what manifests say of that file."""
    flags = pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(deletions.bits)])
    written = TableFile.of(DELETED_PREFIX, table_of(deleted=flags)).write(0, file)
    name = f"{DELETED_PREFIX}{written['xxh3_64']}.arrow"
    return {"name": name, "rows": deletions.count, **written}


def tables_of(segment: Segment) -> Iterator[tuple[str, pa.Table]]:
    """The tables as they are written, by the names of their files."""
    vocabulary, tagsets = segment.vocabulary, segment.tagsets
    yield (
        "vocabulary",
        table_of(
            tag=from_strings(vocabulary.tags),
            hash=pa.array(vocabulary.hashes),
            frequency=pa.array(vocabulary.frequencies),
        ),
    )
    signatures = tagsets.signatures
    if signatures is None:
        signatures = signatures_of(tagsets.ranks, vocabulary.hashes)
    yield "tagsets", table_of(signature=from_words(signatures), ranks=from_lists(tagsets.ranks))
    yield "keys", table_of(keys=from_lists(segment.keys.keys))
    if segment.keys.names is not None:
        yield "key_names", table_of(name=from_strings(segment.keys.names))
    if segment.keys.expires is not None:
        yield Path(EXPIRES).stem, table_of(expires=pa.array(segment.keys.expires))
    yield "partitions", table_of(**rules_of(segment.options).to_arrow(segment.partitions))


def table_of(**columns: pa.Array) -> pa.Table:
    """A table with these columns."""
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
    tables = {name: _read_table(own, files, f"{name}{TABLE_SUFFIX}", check) for name in wanted}
    expires = to_numbers(_read_table(own, files, EXPIRES, check)["expires"]) if parts_of(files, EXPIRES) else None
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
    flags = _read_table(folder, {entry["name"]: entry}, entry["name"], check)["deleted"]
    bits = np.frombuffer(flags.buffers()[1], np.uint8, count=-(-len(flags) // 8))
    return Deletions(bits, entry["rows"])


def _read_table(folder: Path, files: dict[str, Entry], name: str, check: Check) -> dict[str, pa.Array]:
    """Columns of a table, each one chunk of the memory-mapped file or of its parts, which `check` has accepted."""
    parts = parts_of(files, name)
    for part in parts:
        check_file(folder / part, files[part], check)
    with _telling_errors(folder / name):
        # Another program may remove it after that, too
        return read_columns([folder / part for part in parts])


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
