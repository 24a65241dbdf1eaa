"""Snapshots in files: the tables of each segment, memory-mapped when they are read, and one for its deletions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import xxhash

from tagmatch.model.arrays import Strings
from tagmatch.model.arrow import from_lists, from_strings, from_words, to_lists, to_numbers, to_strings, to_words
from tagmatch.model.check import check_bounds
from tagmatch.model.errors import IndexCorruptError, IndexVersionError, InvariantError
from tagmatch.model.kernels.hashing import signatures_of
from tagmatch.model.kernels.tag_table import areas_among, has_reserved
from tagmatch.model.layouts import rules_of
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage import table_files
from tagmatch.model.storage.files import ADVICE, Check, Entry, check_contents, open_plain, sync, telling_errors
from tagmatch.model.storage.format import (
    AREAS,
    CONSTRAINTS,
    DELETED_PREFIX,
    EXPIRES,
    SEGMENT_PREFIX,
    SNAPSHOT_PREFIX,
    TABLE_SUFFIX,
    Manifest,
    files_of,
    key_type_of,
    parts_of,
    version_for,
)
from tagmatch.model.storage.table_files import (
    OpenFile,
    Piece,
    TableFile,
    checked_columns,
    in_memory,
    mapped,
    read_table_file,
)
from tagmatch.model.tables import LONG_AGO, Deletions, KeyTable, Segment, Snapshot, TagsetTable, Vocabulary

_TABLES = ("vocabulary", "tagsets", "keys", "partitions")

# -- written -----------------------------------------------------------------------------------------------------------


def write_snapshot(snapshot: Snapshot, folder: Path, there: Iterable[Entry]) -> Manifest:
    """Write and sync, to a folder, what an index that has the segments `there` lacks of a snapshot.

    Returns the manifest, without its own checksum. IndexCorruptError if files that tables are mapped from have changed.
    """
    known = {entry["name"]: entry for entry in there}
    entries = [_written(segment, known.get(segment.name or ""), folder) for segment in snapshot.segments]
    snapshot.verify()  # both the tables that were written, and those that stay
    return manifest_of(entries, snapshot.segments[0].options, snapshot.key_type)


def _written(segment: Segment, known: Entry | None, folder: Path) -> Entry:
    """What manifests say of a segment whose files are there, or are now."""
    entry = write_segment(segment, folder) if known is None else {**known}
    entry.pop("deleted", None)
    if segment.deletions is not None:
        file = folder / "deleted"
        entry["deleted"] = write_deletions(segment.deletions, len(segment), file)
        file.rename(folder / entry["deleted"]["name"])
    return entry


def manifest_of(entries: Sequence[Entry], options: LayoutOptions, key_type: KeyType) -> Manifest:
    """The manifest of a snapshot that says this of the segments, without its own checksum."""
    deleted = sum(entry.get("deleted", {"rows": 0})["rows"] for entry in entries)
    # A snapshot is its layout, and the contents of its files, which their names stand for
    names = [(entry["name"], entry.get("deleted", {}).get("name")) for entry in entries]
    identity = xxhash.xxh3_64_hexdigest(f"{options.layout} {options.max_partition_size} {names}".encode())
    return {
        "format": version_for(entries),
        "layout": options.layout,
        "max_partition_size": options.max_partition_size,
        "key_type": key_type,
        "sets": sum(entry["rows"] for entry in entries) - deleted,
        "segments": [*entries],
        "snapshot": SNAPSHOT_PREFIX + identity,
    }


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
    """The file of a table with this name, cut if it is large; `elsewhere` as in `TableFile.of`."""
    return TableFile.of(f"{table}{TABLE_SUFFIX}", columns, table_files.PART_BYTES, elsewhere)


def segment_entry(files: Mapping[str, Entry], rows: int, tags: int, seed: int) -> Entry:
    """What manifests say of a segment with these files, in the order of the tables, except `kinds_of`."""
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


# -- read --------------------------------------------------------------------------------------------------------------


class Read(Protocol):
    """What reads the tables of segments."""

    def table(self, name: str, path: str, files: dict[str, Entry]) -> dict[str, pa.Array]:
        """The columns of the table of this name, at this path within the index; of its files, manifests say this."""

    def verifying(self) -> Callable[[], None]:
        """A call that verifies, at any time, that files whose tables were read since are as they were then."""


def read_segments(folder: Path, manifest: Manifest, check: Check) -> tuple[Segment, ...]:
    """The segments whose files an index folder has, each file if `check` accepts it.

    With `check_contents` their tables are looked at, too: no number in them points out of them. IndexCorruptError;
    IndexVersionError if an older version has stored tags that stand for constraints now; TagMatchError.
    """
    segments = tuple(segments_of(manifest, _FolderTables(folder, check)))
    for segment, entry in zip(segments, manifest["segments"], strict=True):
        if check is check_contents:
            try:
                check_bounds(segment, entry["rows"], entry["tags"])
            except InvariantError as error:
                raise IndexCorruptError(f"{folder / entry['name']} is no segment: {error}") from None
        if CONSTRAINTS not in entry:
            reject_reserved(segment.vocabulary.tags, folder / entry["name"])
    return segments


def reject_reserved(tags: Strings, path: object) -> None:
    """Reject tags of constraints of the segment at a path whose manifest says of none; IndexVersionError."""
    if has_reserved(tags):
        raise IndexVersionError(
            f"{path} has tags that begin with U+0000 and +, - or =, which stand for constraints since format 5; with "
            "the version of tagmatch that wrote the index, store these sets with other tags"
        )


def segments_of(manifest: Manifest, read: Read, earliest: int = LONG_AGO) -> Iterator[Segment]:
    """The segments that a manifest names, in their order, of columns that `read` gives; `earliest` as in `Segment`."""
    options = LayoutOptions(manifest["layout"], manifest["max_partition_size"])
    rules, key_type = rules_of(options), key_type_of(manifest)
    for entry in manifest["segments"]:
        files = files_of([entry])

        def table(name: str, entry: Entry = entry, files: dict[str, Entry] = files) -> dict[str, pa.Array]:
            return read.table(name, f"{entry['name']}/{name}{TABLE_SUFFIX}", files)

        vocabulary, tagsets, keys, partitions = map(table, _TABLES)
        names = None if key_type == "integer" else to_strings(table("key_names")["name"])
        expires = to_numbers(table(Path(EXPIRES).stem)["expires"]) if parts_of(entry["files"], EXPIRES) else None
        yield Segment(
            options,
            Vocabulary(
                to_strings(vocabulary["tag"]),
                to_numbers(vocabulary["hash"]),
                to_numbers(vocabulary["frequency"]),
                entry["seed"],
            ),
            TagsetTable(to_words(tagsets["signature"]), to_lists(tagsets["ranks"])),
            KeyTable(to_lists(keys["keys"]), names, expires),
            rules.from_arrow(partitions, len(tagsets["ranks"])),
            _deletions(read.table("deleted", entry["deleted"]["name"], files), entry["deleted"])
            if "deleted" in entry
            else None,
            entry["name"],
            earliest,
            read.verifying(),
        )


def _deletions(columns: dict[str, pa.Array], entry: Entry) -> Deletions:
    flags = columns["deleted"]
    bits = np.frombuffer(flags.buffers()[1] or b"", np.uint8)[: -(-len(flags) // 8)]
    return Deletions(bits, entry["rows"])


class _FolderTables:
    """Tables in a folder, each column one chunk of the memory-mapped file or of its parts; see `Read`."""

    def __init__(self, folder: Path, check: Check) -> None:
        self._folder, self._check = folder, check
        self._files: list[OpenFile] = []

    def table(self, name: str, path: str, files: dict[str, Entry]) -> dict[str, pa.Array]:
        opened = [self._opened(part, files[part]) for part in parts_of(files, path)]
        is_kept = name != "deleted"  # which is small, and goes with each change, while the tables stay
        if is_kept:
            self._files += opened
        with telling_errors(self._folder / path):
            try:
                return checked_columns(name, read_table_file(opened, mapped if is_kept else in_memory))
            except MemoryError:
                raise
            except (ValueError, OSError, pa.ArrowException) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the system's, not Arrow's
                raise IndexCorruptError(
                    f"{self._folder / path} is no table of an index: {str(error)[:400]}; {ADVICE}"
                ) from None

    def verifying(self) -> Callable[[], None]:
        files, self._files = self._files, []

        def verify() -> None:
            for file in files:
                with telling_errors(file.path):
                    file.verify()

        return verify

    def _opened(self, part: str, expected: Entry) -> OpenFile:
        with telling_errors(self._folder / part):
            file = OpenFile(self._folder / part, open_plain(self._folder, part), expected["xxh3_64"])
            # The very file that has passed is mapped, even if another program replaces its name
            self._check(file.descriptor, file.path, expected)
            return file
