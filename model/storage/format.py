"""The format of an index: the names of its files, its manifest, and its snapshots by number; see `docs/format.md`.

New files are written under other names, synced, and only then named by a new manifest that replaces the old one in one
step: a reader sees the old snapshot or the new one, wholly. Names come from contents, so writing the same snapshot
twice changes nothing. Formats 1 and 2 had one segment, in a folder `snapshot-<checksum>`. Format 4 is format 3
with keys that expire, format 5 with constraints, and perhaps such keys, and format 6 with areas among the constraints:
what older versions would not notice. Format 7 has tables of several files, and perhaps all of that, and format 8
records of keys or declared attributes, and perhaps all of that.

A commit that changes what an index holds gets the next number, from 1 on; one that only merges segments, or saves what
is there already, changes no set and keeps it. Where earlier snapshots are kept, the manifest names them and says since
when each is no longer the current one; theirs are in the files `MANIFEST-<number>.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexVersionError
from tagmatch.model.names import Attribute
from tagmatch.model.options import KeyType, LayoutOptions
from tagmatch.model.storage.files import ADVICE, Entry

#: The newest that is read. Of older ones, version 2 is that of indexes whose keys are strings, and version 1 of others
FORMAT_VERSION = 8
# With tables of several files; with areas; with constraints, but no areas; with keys that expire, but no constraints;
# with neither
_PARTS_VERSION, _AREAS_VERSION, _CONSTRAINTS_VERSION, _TIMES_VERSION, _PLAIN_VERSION = 7, 6, 5, 4, 3

#: The contents of a manifest, without its checksum
Manifest: TypeAlias = dict[str, Any]

MANIFEST = "MANIFEST.json"
#: Of a table's file; if it is cut in parts, a dot and the number of the part follow
TABLE_SUFFIX = ".arrow"
#: Of a segment with keys that expire
EXPIRES = "expires.arrow"
#: The table of a segment some of whose keys have records
RECORDS = "records"
#: Said of a segment with constraints in some sets, and with areas in some
CONSTRAINTS, AREAS = "constraints", "areas"
#: Said of an index with declared attributes, and of one without others
ATTRIBUTES, STRICT = "attributes", "strict"
#: Its lock is held by a writer; readers need none
LOCK = "LOCK"
#: Its lock is held by a program for as long as it may stage changes that last
WRITER = "WRITER"
#: In a folder that is not finished; its lock is held by the program that writes there
OWNER = "owner"
#: Where clients are, which no snapshot has
POSITIONS = "POSITIONS.arrow"
STAGED_PREFIX = "staged-"
CHANGES_PREFIX = "changes-"
KEPT_PREFIX = "MANIFEST-"
SNAPSHOT_PREFIX = "snapshot-"
SEGMENT_PREFIX = "segment-"
DELETED_PREFIX = "deleted-"
UNFINISHED_PREFIX = "unfinished-"
#: Of folders of files for the time that a snapshot takes to be made
SCRATCH_PREFIX = f"{UNFINISHED_PREFIX}job-"
#: Of what manifests name: segments, in older formats named otherwise, deletions, staged changes, earlier snapshots
OF_SNAPSHOTS = (SEGMENT_PREFIX, SNAPSHOT_PREFIX, DELETED_PREFIX, CHANGES_PREFIX, KEPT_PREFIX)

# In a manifest
_CHECKSUM_LINE = re.compile(rb'^ "checksum": "([0-9a-f]{16})",\n', re.MULTILINE)


def parse_manifest(text: bytes, path: object) -> Manifest:
    """The manifest of the index at `path`, from its text; IndexCorruptError, IndexVersionError."""
    try:
        manifest = json.loads(text)
        version = manifest["format"]
        newer = version > FORMAT_VERSION
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IndexCorruptError(f"{path}/{MANIFEST} is damaged; {ADVICE}") from None
    if newer:
        raise IndexVersionError(
            f"the index {path} has format {version}, this version of tagmatch reads up to {FORMAT_VERSION}; "
            "upgrade tagmatch"
        )
    # One that is kept is that of an earlier snapshot, under another name
    checksum = manifest.pop("checksum", None)
    if checksum is None or checksum != _checksum_without_its_line(text) or "current" in manifest:
        raise IndexCorruptError(f"{path}/{MANIFEST} does not have the checksum that it was written with; {ADVICE}")
    return checked_manifest(manifest, f"{path}/{MANIFEST}")


def checked_manifest(manifest: Manifest, where: str) -> Manifest:
    """A manifest with the right checksum, as one of today; IndexCorruptError if it says what none can say."""
    try:
        upgraded = manifest if manifest["format"] >= _PLAIN_VERSION else _upgraded(manifest)
        check_manifest(upgraded)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexCorruptError(f"{where} is of no index that tagmatch has written: {error}; {ADVICE}") from None
    return upgraded


def _checksum_without_its_line(text: bytes) -> str | None:
    """The checksum of a manifest without the line that has it."""
    line = _CHECKSUM_LINE.search(text)
    if line is None or not text.endswith(b"\n"):
        return None
    return xxhash.xxh3_64_hexdigest(text[: line.start()] + text[line.end() : -1])


def version_for(segments: Iterable[Entry]) -> int:
    """The format of an index with these segments."""
    segments = list(segments)
    if any(parts_of(entry["files"], f"{RECORDS}{TABLE_SUFFIX}") for entry in segments):
        return FORMAT_VERSION
    if any(not name.endswith(TABLE_SUFFIX) for entry in segments for name in entry["files"]):
        return _PARTS_VERSION
    if any(AREAS in entry for entry in segments):
        return _AREAS_VERSION
    if any(CONSTRAINTS in entry for entry in segments):
        return _CONSTRAINTS_VERSION
    return _TIMES_VERSION if any(parts_of(entry["files"], EXPIRES) for entry in segments) else _PLAIN_VERSION


def _upgraded(manifest: Manifest) -> Manifest:
    """The manifest of format 1 or 2 as one of format 3 would be that names the same files."""
    of_segment = {name: manifest.pop(name) for name in ("seed", "tags", "files")}
    segment = {"name": manifest["snapshot"], "rows": manifest["sets"], **of_segment}
    return {"key_type": "integer", **manifest, "format": _PLAIN_VERSION, "segments": [segment]}


def manifest_text(manifest: Manifest) -> bytes:
    """The manifest as it is written, with its checksum."""
    text = (json.dumps({**manifest, "checksum": "0" * 16}, indent=1, sort_keys=True) + "\n").encode()
    line, checksum = _CHECKSUM_LINE.search(text), _checksum_without_its_line(text)
    assert line is not None
    assert checksum is not None
    return text[: line.start(1)] + checksum.encode() + text[line.end(1) :]


# -- what a manifest says ----------------------------------------------------------------------------------------------


def number_of(manifest: Manifest) -> int:
    """The number of a snapshot; versions that did not count have written 0."""
    return manifest.get("number", 0)  # type: ignore[no-any-return]


def first_log_of(manifest: Manifest) -> int:
    """The first generation of logs whose changes are not in the snapshot."""
    return manifest.get("log", 1)  # type: ignore[no-any-return]


def key_type_of(manifest: Manifest) -> KeyType:
    """The type of the keys of the index."""
    return manifest["key_type"]  # type: ignore[no-any-return]


def staged_of(manifest: Manifest) -> list[Entry]:
    """The files of changes that were staged when the index was copied, and still are."""
    return list(manifest.get("staged", ()))


def kept_of(manifest: Manifest) -> list[Entry]:
    """The manifests of the earlier snapshots that the index keeps, oldest first."""
    return list(manifest.get("kept", ()))


def declared_entries(options: LayoutOptions) -> Manifest:
    """What a manifest says of declared attributes."""
    said: Manifest = {ATTRIBUTES: [each._asdict() for each in options.attributes]} if options.attributes else {}
    return {**said, STRICT: True} if options.strict else said


def declared_in(manifest: Manifest) -> tuple[tuple[Attribute, ...], bool]:
    """The declared attributes of the index, and whether there are no others."""
    return tuple(Attribute(**each) for each in manifest.get(ATTRIBUTES, ())), STRICT in manifest


def files_of(segments: Iterable[Entry]) -> dict[str, Entry]:
    """The files of segments that a manifest names, by their paths within the index, with what it says of each."""
    files: dict[str, Entry] = {}
    for segment in segments:
        files |= {f"{segment['name']}/{name}": expected for name, expected in segment["files"].items()}
        if "deleted" in segment:
            files[segment["deleted"]["name"]] = segment["deleted"]
    return files


def files_in(manifest: Manifest) -> dict[str, Entry]:
    """The files of the current snapshot, and of changes that came with it, by their paths within the index."""
    return files_of(manifest["segments"]) | {entry["name"]: entry for entry in staged_of(manifest)}


def files_nbytes(manifest: Manifest) -> int:
    """Bytes of the files of the current snapshot."""
    return sum(expected["bytes"] for expected in files_of(manifest["segments"]).values())


def parts_of(files: Iterable[str], name: str) -> list[str]:
    """Those of a segment's files that make up the file of this name, in order; none if it has no such table."""
    return sorted(file for file in files if file == name or file.startswith(f"{name}."))


def names_of(manifest: Manifest) -> set[str]:
    """Names, within the index, of these files, and of the folders that they are in."""
    return {path.partition("/")[0] for path in files_in(manifest)}


def within(files: dict[str, Entry], name: str) -> dict[str, Entry]:
    """Those of the files that are in the folder of this name, or the one that has it."""
    return {path: expected for path, expected in files.items() if path.partition("/")[0] == name}


# -- whether it says what one can say: a stranger's has a right checksum, too ------------------------------------------

_COUNT, _ANY = range(2**63), re.compile(".*", re.DOTALL)
_TIME = datetime.fromisoformat
# Names above all: they are joined to the path of the index, and what they name is read, moved and removed. Only names
# of the forms in which we write them are taken, which have no separators, so that none leads out of the folder.
_SUM = r"[0-9a-f]{16}"
_FILE = {"bytes": _COUNT, "xxh3_64": re.compile(_SUM)}
_TABLES = re.compile(r"(vocabulary|tagsets|keys|key_names|partitions|expires|records)\.arrow(\.[0-9]{5,9})?")
_SEGMENT = {
    "name": re.compile(rf"(segment|snapshot)-{_SUM}"),
    "rows": _COUNT,
    "tags": _COUNT,
    "seed": range(2**64),
    "files": {_TABLES: _FILE},
    "deleted?": {"name": re.compile(rf"deleted-{_SUM}\.arrow"), "rows": _COUNT, **_FILE},
    "constraints?": True,
    "areas?": True,
}
_KEPT = {"name": re.compile(r"MANIFEST-[0-9]{1,19}\.json"), "number": _COUNT, "sets": _COUNT, "until": _TIME, **_FILE}
#: What each field may have: text of a pattern, an integer of a range, one of several values, a time, a list, or an
#: object of fields with names of a pattern or with given names; a field with a `?` is optional
_MANIFEST = {
    "snapshot": re.compile(rf"snapshot-{_SUM}"),
    "layout": ("balanced", "rarest"),
    "max_partition_size": range(1, 2**63),
    "key_type": ("integer", "string"),
    "sets": _COUNT,
    "segments": [_SEGMENT],
    f"{ATTRIBUTES}?": [{"name": _ANY, "type": _ANY, "analyzer": _ANY}],
    f"{STRICT}?": True,
    "number?": _COUNT,
    "log?": range(1, 2**63),
    "keep_snapshots?": _COUNT,
    "kept?": [_KEPT],
    "staged?": [{"name": re.compile(rf"changes-{_SUM}\.log"), "changes": _COUNT, **_FILE}],
    "backup?": {"keep_snapshots?": _COUNT},
    "epochs?": {_ANY: _COUNT},
}
#: The tables that each segment has
ALWAYS = ("vocabulary", "tagsets", "keys", "partitions")


def check_manifest(manifest: Any) -> None:
    """Reject a manifest that has not the form of format 3 or newer; ValueError names the wrong value."""
    _check(manifest, _MANIFEST, "manifest")
    if not manifest["segments"]:
        raise ValueError("segments are none")
    for segment in manifest["segments"]:
        _check_tables(segment["files"], manifest["key_type"])
    for kept in kept_of(manifest):
        if kept["name"] != f"{KEPT_PREFIX}{kept['number']}.json":
            raise ValueError(f"kept: {kept['name']!r} is not of snapshot {kept['number']}")
    for staged in staged_of(manifest):
        _check(staged["changes"], range(staged["bytes"] + 1), "staged: changes")


def _check(found: Any, form: Any, what: str) -> None:
    good: object
    match form:
        case re.Pattern():
            good, told = isinstance(found, str) and form.fullmatch(found), "not of the form that is written"
        case range():
            good, told = type(found) is int and found in form, f"no number from {form[0]} to {form[-1]}"
        case bool():
            good, told = found is form, "not true"
        case tuple():
            good, told = found in form, f"not one of {', '.join(form)}"
        case list() | dict():
            good, told = isinstance(found, type(form)), "no list" if isinstance(form, list) else "no object"
        case _:
            good, told = isinstance(found, str) and form(found).tzinfo, "no time with a zone"
    if not good:
        text = repr(found)
        raise ValueError(f"{what}: {text if len(text) <= 80 else f'{text[:77]}...'} is {told}")
    if isinstance(form, list):
        for one in found:
            _check(one, form[0], what)
    for name, inner in form.items() if isinstance(form, dict) else ():
        if isinstance(name, re.Pattern):
            for own, value in found.items():
                _check(own, name, what)
                _check(value, inner, f"{what}: {own}")
        elif (plain := name.removesuffix("?")) in found:
            _check(found[plain], inner, f"{what}: {plain}")
        elif plain == name:
            raise ValueError(f"{what}: {name} is missing")


def _check_tables(files: Iterable[str], key_type: str) -> None:
    """See that a segment has all tables, each as one file or as parts from the first to the last."""
    parts: dict[str, list[str]] = {}
    for name in sorted(files):
        table, _, part = name.partition(TABLE_SUFFIX)
        parts.setdefault(table, []).append(part)
    for table in [*ALWAYS, *(["key_names"] if key_type == "string" else [])]:
        if table not in parts:
            raise ValueError(f"a segment has no table {table}")
    for table, found in parts.items():
        if found != [""] and found != [f".{number:05}" for number in range(len(found))]:
            raise ValueError(f"parts of the table {table} of a segment are missing")


# -- snapshots by number -----------------------------------------------------------------------------------------------

#: What a manifest says of streams: the number of the last micro-batch of each whose changes the index has
EPOCHS = "epochs"
#: What a manifest says that is no part of the snapshot: of the log, of other snapshots, of who wrote it, of streams
_OF_THE_INDEX = ("log", "staged", "kept", "keep_snapshots", "backup", "current", "checksum", EPOCHS)


@dataclass(frozen=True, slots=True)
class Commit:
    """What the manifest says besides the new current snapshot."""

    ahead: Sequence[Entry] = ()  # of `written_ahead`, for segments that others were merged into: no set changes, then
    log: int | None = None  # the first log whose changes are not in the snapshot; default: as the index has it
    keep: int | None = None  # how many earlier snapshots to keep from now on; default: as until now, at first none
    staged: Sequence[Entry] = ()  # files of changes that are not in the snapshot, which come before those in the log


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
        SnapshotInfo(each["number"], each["sets"], datetime.fromisoformat(each["until"])) for each in kept_of(manifest)
    ]
    return [*kept, SnapshotInfo(number_of(manifest), manifest["sets"], None)]


def succeed(
    made: Manifest, current: Manifest | None, commit: Commit | None = None, *, least: int = 1
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest with which a snapshot takes the place of the current one, and the new files that it names, by name.

    `made` is that of the snapshot alone; `least` is the number that it gets, if that is not too small.
    """
    commit, before = commit or Commit(), current or {}
    keep = before.get("keep_snapshots", 0) if commit.keep is None else commit.keep
    kept, files, number = kept_of(before), {}, least
    if current is not None:
        is_next = not (commit.ahead or made["snapshot"] == current["snapshot"])
        number = max(least, number_of(current) + is_next)
        if is_next and keep:
            # Marked, so that it cannot be taken for that of the current one
            text = manifest_text({**alone(current), "number": number_of(current), "current": False})
            entry = {
                "name": f"{KEPT_PREFIX}{number_of(current)}.json",
                "number": number_of(current),
                "sets": current["sets"],
                "until": datetime.now(UTC).isoformat(timespec="seconds"),
                "bytes": len(text),
                "xxh3_64": xxhash.xxh3_64_hexdigest(text),
            }
            kept, files = [*kept, entry], {entry["name"]: text}
    epochs = {EPOCHS: before[EPOCHS]} if EPOCHS in before else {}
    manifest = {**epochs, **made, "number": number}
    if keep:
        manifest["keep_snapshots"] = keep
        if kept:
            manifest["kept"] = kept[-keep:]
    if log := max(commit.log or 0, before.get("log", 0)):
        manifest["log"] = log
    if staged := staged_of(before) if commit.log is None else commit.staged:
        manifest["staged"] = staged
    return manifest, files
