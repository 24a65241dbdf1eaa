"""The format of an index: the names of its files, and its manifest; `docs/format.md` describes it.

Layout of an index folder ::

    MANIFEST.json            format version, options, counts, and size and XXH3-64 of every file; its own checksum
    MANIFEST-<number>.json   the same of an earlier snapshot that is kept; history.py
    segment-<checksum>/      vocabulary.arrow, tagsets.arrow, keys.arrow, partitions.arrow
                             key_names.arrow where keys are strings, expires.arrow where some expire
                             tagsets.arrow.00000, tagsets.arrow.00001, ... where one is large; table_files.py
    deleted-<checksum>.arrow which rows of a segment are deleted
    LOCK                     empty; held by the program that writes; stores have none
    staged-<generation>.log  changes that are staged; log_files.py has their format
    changes-<checksum>.log   changes that were staged when the index was copied; copies.py
    WRITER                   empty; held by the program that stages changes, from opening to closing

New files are written under other names, synced, and only then named by a new manifest that replaces the old one in one
step: a reader sees the old snapshot or the new one, wholly. Names come from contents, so writing the same snapshot
twice changes nothing. Formats 1 and 2 had one segment, in a folder `snapshot-<checksum>`. Format 4 is format 3
with keys that expire, format 5 with constraints, and perhaps such keys, and format 6 with areas among the constraints:
what older versions would not notice. Format 7 has tables of several files, and perhaps all of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import xxhash

from tagmatch.model.errors import IndexCorruptError, IndexVersionError
from tagmatch.model.options import KeyType
from tagmatch.model.storage.files import ADVICE, Entry

#: The newest that is read. Of older ones, version 2 is that of indexes whose keys are strings, and version 1 of others
FORMAT_VERSION = 7
# With areas; with constraints, but no areas; with keys that expire, but no constraints; with neither
_AREAS_VERSION, _CONSTRAINTS_VERSION, _TIMES_VERSION, _PLAIN_VERSION = 6, 5, 4, 3

#: The contents of a manifest, without its checksum
Manifest: TypeAlias = dict[str, Any]

MANIFEST = "MANIFEST.json"
#: Of a table's file; if it is cut in parts, a dot and the number of the part follow
TABLE_SUFFIX = ".arrow"
#: Of a segment with keys that expire
EXPIRES = "expires.arrow"
#: Said of a segment with constraints in some sets, and with areas in some
CONSTRAINTS, AREAS = "constraints", "areas"
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
    if any(not name.endswith(TABLE_SUFFIX) for entry in segments for name in entry["files"]):
        return FORMAT_VERSION
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

# Names above all: they are joined to the path of the index, and what they name is read, moved and removed. Only names
# of the forms in which we write them are taken, which have no separators, so that none leads out of the folder.
_SUM = r"[0-9a-f]{16}"
_SUMS = re.compile(_SUM)
_SNAPSHOTS = re.compile(rf"snapshot-{_SUM}")
_SEGMENTS = re.compile(rf"(segment|snapshot)-{_SUM}")
_DELETIONS = re.compile(rf"deleted-{_SUM}\.arrow")
_CHANGES = re.compile(rf"changes-{_SUM}\.log")
_KEPT = re.compile(r"MANIFEST-[0-9]{1,19}\.json")
_TABLES = re.compile(r"(vocabulary|tagsets|keys|key_names|partitions|expires)\.arrow(\.[0-9]{5,9})?")

_LARGEST = 2**63 - 1
_ALWAYS = ("vocabulary", "tagsets", "keys", "partitions")

#: Accepts a value, or raises ValueError
_Check = Callable[[Any], None]


def check_manifest(manifest: Any) -> None:
    """Reject what has not the form of a manifest of format 3 or newer; ValueError says which value is wrong."""
    _fields(
        manifest,
        "manifest",
        snapshot=_name(_SNAPSHOTS),
        layout=_one_of("balanced", "rarest"),
        max_partition_size=_number(1),
        key_type=_one_of("integer", "string"),
        sets=_number(),
        segments=_several(_segment),
    )
    if not manifest["segments"]:
        raise ValueError("segments are none")
    _fields(
        manifest,
        "manifest",
        optional=True,
        number=_number(),
        log=_number(1),
        keep_snapshots=_number(),
        kept=_several(_kept),
        staged=_several(_staged),
        backup=lambda found: _fields(found, "backup", optional=True, keep_snapshots=_number()),
        epochs=lambda found: _each(found, _number()),
    )
    for segment in manifest["segments"]:
        _check_tables(segment["files"], manifest["key_type"])


def _segment(found: Any) -> None:
    _fields(
        found, "segment",
        name=_name(_SEGMENTS), rows=_number(), tags=_number(), seed=_number(0, 2**64 - 1), files=_files,
    )  # fmt: skip
    _fields(found, "segment", optional=True, deleted=_deleted, constraints=_flag, areas=_flag)


def _deleted(found: Any) -> None:
    _fields(found, "deleted", name=_name(_DELETIONS), rows=_number())
    _file(found)


def _kept(found: Any) -> None:
    _fields(found, "kept", name=_name(_KEPT), number=_number(), sets=_number(), until=_time)
    _file(found)
    if found["name"] != f"MANIFEST-{found['number']}.json":
        raise ValueError(f"kept: {found['name']!r} is not of snapshot {found['number']}")


def _staged(found: Any) -> None:
    _file(found)
    _fields(found, "staged", name=_name(_CHANGES), changes=_number(most=found["bytes"]))


def _file(found: Any) -> None:
    _fields(found, "file", bytes=_number(), xxh3_64=_name(_SUMS))


def _files(found: Any) -> None:
    _each(found, _file)
    for name in found:
        _name(_TABLES)(name)


def _check_tables(files: Mapping[str, Any], key_type: str) -> None:
    """See that a segment has all tables, each as one file or as parts from the first to the last."""
    parts: dict[str, list[str]] = {}
    for name in sorted(files):
        table, _, part = name.partition(".arrow")
        parts.setdefault(table, []).append(part)
    for table in [*_ALWAYS, *(["key_names"] if key_type == "string" else [])]:
        if table not in parts:
            raise ValueError(f"a segment has no table {table}")
    for table, found in parts.items():
        if found != [""] and found != [f".{number:05}" for number in range(len(found))]:
            raise ValueError(f"parts of the table {table} of a segment are missing")


def _fields(found: Any, what: str, *, optional: bool = False, **checks: _Check) -> None:
    fields = _mapping(found)
    for name, check in checks.items():
        if optional and name not in fields:
            continue
        try:
            check(fields[name])
        except KeyError:
            raise ValueError(f"{what}: {name} is missing") from None
        except ValueError as error:
            raise ValueError(f"{what}: {name}: {error}") from None


def _mapping(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{_shown(found)} is no object")
    return found


def _each(found: Any, check: _Check) -> None:
    for one in _mapping(found).values():
        check(one)


def _several(check: _Check) -> _Check:
    def each(found: Any) -> None:
        if not isinstance(found, list):
            raise ValueError(f"{_shown(found)} is no list")
        for one in found:
            check(one)

    return each


def _name(form: re.Pattern[str]) -> _Check:
    def check(found: Any) -> None:
        if not isinstance(found, str) or not form.fullmatch(found):
            raise ValueError(f"{_shown(found)} is not of the form that is written")

    return check


def _number(least: int = 0, most: int = _LARGEST) -> _Check:
    def check(found: Any) -> None:
        if type(found) is not int or not least <= found <= most:
            raise ValueError(f"{_shown(found)} is no number from {least} to {most}")

    return check


def _one_of(*values: str) -> _Check:
    def check(found: Any) -> None:
        if found not in values:
            raise ValueError(f"{_shown(found)} is not one of {', '.join(values)}")

    return check


def _flag(found: Any) -> None:
    if found is not True:
        raise ValueError(f"{_shown(found)} is not true")


def _time(found: Any) -> None:
    if not isinstance(found, str):
        raise ValueError(f"{_shown(found)} is no time")
    if datetime.fromisoformat(found).tzinfo is None:
        raise ValueError(f"{found!r} has no time zone")


def _shown(found: Any) -> str:
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:77]}..."
