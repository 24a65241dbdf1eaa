"""Snapshots by number: which one a commit gets, and which earlier ones an index keeps.

A commit that changes what an index holds gets the next number, from 1 on; one that only merges segments, or saves what
is there already, changes no set and keeps it. Where earlier snapshots are kept, the manifest names them and says since
when each is no longer the current one; theirs are in files of their own, `MANIFEST-<number>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexNotFoundError, InvalidValueError, TagMatchError
from tagmatch.model.storage.format import (
    ADVICE,
    KEPT_PREFIX,
    MANIFEST,
    Entry,
    Manifest,
    checked_manifest,
    files_in,
    manifest_text,
    names_of,
    number_of,
    staged_of,
)

#: What a manifest says of streams: the number of the last micro-batch of each whose changes the index has
EPOCHS = "epochs"
#: What a manifest says that is no part of the snapshot: of the log, of other snapshots, of who wrote it, of streams
_OF_THE_INDEX = ("log", "staged", "kept", "keep_snapshots", "backup", "current", "checksum", EPOCHS)


@dataclass(frozen=True, slots=True)
class Commit:
    """What an index is to say beside the snapshot that becomes its current one.

    Attributes
    ----------
    ahead : sequence of dict
        What `Location.written_ahead` gave for segments that the snapshot has, into which others were merged: it has the
        sets of the current one, then.
    log : int, optional
        Number of the first log of staged changes that are not in the snapshot; default: as the index has it.
    keep : int, optional
        How many earlier snapshots it is to keep from now on; default: as many as until now, at first none.
    """

    ahead: Sequence[Entry] = ()
    log: int | None = None
    keep: int | None = None


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

    Parameters
    ----------
    made : dict
        The manifest of the snapshot alone.
    current : dict, optional
        That of the index as it is.
    keep : int, optional
        How many earlier snapshots are to be kept; default: as the index has it.
    same_sets : bool
        It has the sets of the current one, laid out in another way.
    least : int
        The number that it gets, if that is not too small.
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
    """The manifest with all that is staged in the current one, or only what is in logs from this one on."""
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


def manifest_by_number(
    number: int | None, read_current: Callable[[], Manifest], read: Callable[[str], bytes], path: object
) -> Manifest:
    """The manifest of the snapshot with a number, or of the current one.

    Parameters
    ----------
    read_current, read
        Give the manifest of the index at `path`, and the contents of a file of it, or FileNotFoundError.

    Raises
    ------
    IndexNotFoundError
        It is not kept.
    IndexCorruptError
        Its manifest is damaged.
    """
    while True:
        current = read_current()
        if number is None or number == number_of(current):
            return current
        entry = next((each for each in _kept(current) if each["number"] == number), None)
        if entry is None:
            raise IndexNotFoundError(f"the index {path} does not keep a snapshot {number}; it has {_listed(current)}")
        try:
            return _manifest_kept(entry, read, path)
        except IndexCorruptError:
            # A newer snapshot may have been saved, and this one is not kept any more
            if read_current() == current:
                raise


def _listed(manifest: Manifest) -> str:
    """The numbers that an index has, as messages have them."""
    *earlier, current = (info.number for info in snapshots_in(manifest))
    if not earlier:
        return f"{current} only; keep_snapshots says how many earlier ones are to be kept from now on"
    return f"{', '.join(map(str, earlier))} and {current}, the current one"


def _manifest_kept(entry: Entry, read: Callable[[str], bytes], path: object) -> Manifest:
    try:
        text = read(entry["name"])
    except FileNotFoundError:
        raise IndexCorruptError(f"{path}/{entry['name']} is missing; {ADVICE}") from None
    if xxhash.xxh3_64_hexdigest(text) != entry["xxh3_64"]:
        raise IndexCorruptError(f"{path}/{entry['name']} does not have the checksum that it was written with; {ADVICE}")
    where = f"{path}/{entry['name']}"
    try:
        return checked_manifest(alone(json.loads(text)), where)
    except (ValueError, AttributeError, RecursionError):
        raise IndexCorruptError(f"{where} is damaged; {ADVICE}") from None


def reject_number(number: int | None, path: object) -> None:
    """See that an index was not opened at a snapshot by its number; InvalidValueError."""
    if number is not None:
        raise InvalidValueError(
            f"there is nothing to reload: the index {path} was opened at snapshot {number}, which never changes; open "
            "it without a number to follow it"
        )


def manifests_kept(manifest: Manifest, read: Callable[[str], bytes], path: object) -> list[Manifest]:
    """The manifests of the earlier snapshots that the one of an index names; IndexCorruptError."""
    return [_manifest_kept(entry, read, path) for entry in _kept(manifest)]


def names_needed(manifest: Manifest, read: Callable[[str], bytes], path: object) -> set[str] | None:
    """Names within an index of all that its snapshots need; `None` if a manifest cannot be read, so nobody can tell."""
    try:
        earlier = manifests_kept(manifest, read, path)
    except TagMatchError:
        return None
    names = names_of(manifest).union(*(names_of(each) for each in earlier))
    return names | {entry["name"] for entry in _kept(manifest)} | {MANIFEST}


def check_kept(
    read_current: Callable[[], Manifest], read: Callable[[str], bytes], checksum: Callable[[str], str], path: object
) -> None:
    """See that the files of the earlier snapshots that an index keeps have their checksums; IndexCorruptError.

    Those that the current one has, too, are left out. `checksum` is that of a file by its path, the rest as of
    `manifest_by_number`.
    """
    while True:
        current = read_current()
        try:
            checked = files_in(current)
            for earlier in manifests_kept(current, read, path):
                for name, expected in files_in(earlier).items():
                    if checked.setdefault(name, expected) is expected:
                        _check_file(name, expected, checksum, path)
            return
        except IndexCorruptError:
            if read_current() == current:
                raise


def _check_file(name: str, expected: Entry, checksum: Callable[[str], str], path: object) -> None:
    try:
        found = checksum(name)
    except FileNotFoundError:
        raise IndexCorruptError(f"{path}/{name} is missing; {ADVICE}") from None
    if found != expected["xxh3_64"]:
        raise IndexCorruptError(f"{path}/{name} does not have the checksum that it was written with; {ADVICE}")
