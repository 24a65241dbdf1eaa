"""Snapshots as manifests have them: what is not among an index's files is written, the rest stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import xxhash

from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage.format import SNAPSHOT_PREFIX, Entry, Manifest, version_for
from tagmatch.model.storage.segment_files import write_deletions, write_segment
from tagmatch.model.tables import Segment, Snapshot


def write_snapshot(snapshot: Snapshot, folder: Path, there: Iterable[Entry]) -> Manifest:
    """Write and sync what an index lacks of a snapshot; returns the manifest, without its own checksum.

    Parameters
    ----------
    folder : Path
        Gets the new files.
    there
        The segments whose files the index has.

    Raises
    ------
    IndexCorruptError
        Files that tables are mapped from are not as they were.
    """
    known = {entry["name"]: entry for entry in there}
    entries = [_written(segment, known.get(segment.name or ""), folder) for segment in snapshot.segments]
    snapshot.verify()  # both the tables that were written, and those that stay
    return manifest_of(entries, snapshot.segments[0].options, snapshot.key_type)


def manifest_of(entries: Sequence[Entry], options: LayoutOptions, key_type: KeyType) -> Manifest:
    """The manifest of a snapshot of which it says this of the segments, without its own checksum."""
    deleted = sum(entry.get("deleted", {"rows": 0})["rows"] for entry in entries)
    manifest: Manifest = {
        "format": version_for(entries),
        "layout": options.layout,
        "max_partition_size": options.max_partition_size,
        "key_type": key_type,
        "sets": sum(entry["rows"] for entry in entries) - deleted,
        "segments": [*entries],
    }
    return {**manifest, "snapshot": SNAPSHOT_PREFIX + _identity(manifest)}


def _written(segment: Segment, known: Entry | None, folder: Path) -> Entry:
    """What manifests say of a segment whose files are there, or are now."""
    entry = write_segment(segment, folder) if known is None else {**known}
    entry.pop("deleted", None)
    if segment.deletions is not None:
        file = folder / "deleted"
        entry["deleted"] = write_deletions(segment.deletions, len(segment), file)
        file.rename(folder / entry["deleted"]["name"])
    return entry


def _identity(manifest: Manifest) -> str:
    """A checksum of what a snapshot is: its layout, and the contents of its files, which their names stand for."""
    names = [(entry["name"], entry.get("deleted", {}).get("name")) for entry in manifest["segments"]]
    return xxhash.xxh3_64_hexdigest(f"{manifest['layout']} {manifest['max_partition_size']} {names}".encode())
