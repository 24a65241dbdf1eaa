"""Snapshots by number: which one a commit gets, and which earlier ones an index keeps.

A commit that changes what an index holds gets the next number, from 1 on; one that only merges segments, or saves what
is there already, changes no set and keeps it. Where earlier snapshots are kept, the manifest names them and says since
when each is no longer the current one; theirs are in the files `MANIFEST-<number>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexNotFoundError, TagMatchError
from tagmatch.model.storage.byte_store import ByteStore
from tagmatch.model.storage.files import ADVICE, Entry
from tagmatch.model.storage.format import (
    KEPT_PREFIX,
    MANIFEST,
    Manifest,
    checked_manifest,
    files_in,
    manifest_text,
    names_of,
    number_of,
    staged_of,
)

T = TypeVar("T")

#: What a manifest says of streams: the number of the last micro-batch of each whose changes the index has
EPOCHS = "epochs"
#: What a manifest says that is no part of the snapshot: of the log, of other snapshots, of who wrote it, of streams
_OF_THE_INDEX = ("log", "staged", "kept", "keep_snapshots", "backup", "current", "checksum", EPOCHS)


@dataclass(frozen=True, slots=True)
class Commit:
    """What the manifest says besides the new current snapshot."""

    ahead: Sequence[Entry] = ()  # of `written_ahead`, for segments that others were merged into: no set changes, then
    log: int | None = (
        None  # number of the first log whose changes are not in the snapshot; default: as the index has it
    )
    keep: int | None = None  # how many earlier snapshots to keep from now on; default: as until now, at first none


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot that can be opened by its number.

    Attributes
    ----------
    number : int
    sets : int
        How many sets are stored.
    until : datetime, optional
        When a newer one took its place, in UTC; `None` of the current one.
    """

    number: int
    sets: int
    until: datetime | None


def alone(manifest: Manifest) -> Manifest:
    """What a manifest says of its snapshot."""
    return {name: value for name, value in manifest.items() if name not in _OF_THE_INDEX}


def snapshots_in(manifest: Manifest) -> list[SnapshotInfo]:
    """The snapshots of the index with this manifest, oldest first."""
    kept = [
        SnapshotInfo(each["number"], each["sets"], datetime.fromisoformat(each["until"])) for each in _kept(manifest)
    ]
    return [*kept, SnapshotInfo(number_of(manifest), manifest["sets"], None)]


def succeed(
    made: Manifest, current: Manifest | None, keep: int | None = None, *, same_sets: bool = False, least: int = 1
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest with which a snapshot takes the place of the current one, and the new files that it names, by name.

    `made` is that of the snapshot alone, `keep` as in `Commit`; `same_sets`: it has the sets of the current one, laid
    out in another way; `least` is the number that it gets, if that is not too small.
    """
    before: Manifest = current or {}
    keep = before.get("keep_snapshots", 0) if keep is None else keep
    kept, files, number = _kept(before), {}, least
    if current is not None:
        is_next = not (same_sets or made["snapshot"] == current["snapshot"])
        number = max(least, number_of(current) + is_next)
        if is_next and keep:
            entry, text = _to_keep(current)
            kept, files = [*kept, entry], {entry["name"]: text}
    epochs = {EPOCHS: before[EPOCHS]} if EPOCHS in before else {}
    manifest = {**epochs, **made, "number": number}
    if keep:
        manifest["keep_snapshots"] = keep
        if kept:
            manifest["kept"] = kept[-keep:]
    return manifest, files


def with_staged(manifest: Manifest, current: Manifest | None, log: int | None = None) -> Manifest:
    """The manifest with all changes staged in the current one, or only those in logs from `log` on."""
    before: Manifest = current or {}
    first = max(log or 0, before.get("log", 0))
    staged = staged_of(before) if log is None else []
    return manifest | ({"log": first} if first else {}) | ({"staged": staged} if staged else {})


def _to_keep(current: Manifest) -> tuple[Entry, bytes]:
    """What manifests say of the current snapshot from now on, and its own manifest."""
    number = number_of(current)
    # Marked, so that it cannot be taken for that of the current one
    text = manifest_text({**alone(current), "number": number, "current": False})
    entry = {
        "name": f"{KEPT_PREFIX}{number}.json",
        "number": number,
        "sets": current["sets"],
        "until": datetime.now(UTC).isoformat(timespec="seconds"),
        "bytes": len(text),
        "xxh3_64": xxhash.xxh3_64_hexdigest(text),
    }
    return entry, text


def _kept(manifest: Manifest) -> list[Entry]:
    return list(manifest.get("kept", ()))


# -- reading earlier ones from a store ---------------------------------------------------------------------------------


def of_one_moment(read_current: Callable[[], Manifest], use: Callable[[Manifest], T]) -> T:
    """Use the current manifest, and again if files were missing because a newer snapshot was saved since."""
    while True:
        current = read_current()
        try:
            return use(current)
        except IndexCorruptError:
            if read_current() == current:
                raise


def manifest_by_number(number: int | None, current: Manifest, files: ByteStore) -> Manifest:
    """The manifest of the snapshot with a number, or of the current one; IndexNotFoundError, IndexCorruptError."""
    if number is None or number == number_of(current):
        return current
    entry = next((each for each in _kept(current) if each["number"] == number), None)
    if entry is None:
        raise IndexNotFoundError(f"the index {files} does not keep a snapshot {number}; it has {_listed(current)}")
    return _manifest_kept(entry, files)


def _listed(manifest: Manifest) -> str:
    """The numbers that an index has, as messages have them."""
    *earlier, current = (info.number for info in snapshots_in(manifest))
    if not earlier:
        return f"{current} only; keep_snapshots says how many earlier ones are to be kept from now on"
    return f"{', '.join(map(str, earlier))} and {current}, the current one"


def _manifest_kept(entry: Entry, files: ByteStore) -> Manifest:
    where = f"{files}/{entry['name']}"
    try:
        text = files.read(entry["name"])
    except FileNotFoundError:
        raise IndexCorruptError(f"{where} is missing; {ADVICE}") from None
    if xxhash.xxh3_64_hexdigest(text) != entry["xxh3_64"]:
        raise IndexCorruptError(f"{where} does not have the checksum that it was written with; {ADVICE}")
    try:
        return checked_manifest(alone(json.loads(text)), where)
    except (ValueError, AttributeError, RecursionError):
        raise IndexCorruptError(f"{where} is damaged; {ADVICE}") from None


def names_needed(manifest: Manifest, files: ByteStore) -> set[str] | None:
    """Names within an index of all that its snapshots need; `None` if a manifest cannot be read, so none can tell."""
    try:
        earlier = [_manifest_kept(entry, files) for entry in _kept(manifest)]
    except TagMatchError:
        return None
    names = names_of(manifest).union(*(names_of(each) for each in earlier))
    return names | {entry["name"] for entry in _kept(manifest)} | {MANIFEST}


def check_kept(current: Manifest, files: ByteStore) -> None:
    """Check that files of earlier snapshots, which the current one lacks, have their checksums; IndexCorruptError."""
    checked = files_in(current)
    for entry in _kept(current):
        for name, expected in files_in(_manifest_kept(entry, files)).items():
            if checked.setdefault(name, expected) is expected:
                _check_file(name, expected, files)


def _check_file(name: str, expected: Entry, files: ByteStore) -> None:
    try:
        found = files.checksum(name)
    except FileNotFoundError:
        raise IndexCorruptError(f"{files}/{name} is missing; {ADVICE}") from None
    if found != expected["xxh3_64"]:
        raise IndexCorruptError(f"{files}/{name} does not have the checksum that it was written with; {ADVICE}")
