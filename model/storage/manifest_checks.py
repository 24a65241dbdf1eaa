"""Whether a manifest says what one can say: checksums need no secret, so that a stranger's may be made to say anything.

Names above all: they are joined to the path of the index, and what they name is read, moved and removed. Only names of
the forms in which we write them are taken, which have no separators, so that none leads out of the folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

_SUM = r"[0-9a-f]{16}"
#: Forms of the names of each kind of file
SEGMENTS = re.compile(rf"(segment|snapshot)-{_SUM}")
DELETIONS = re.compile(rf"deleted-{_SUM}\.arrow")
CHANGES = re.compile(rf"changes-{_SUM}\.log")
KEPT = re.compile(r"MANIFEST-[0-9]{1,19}\.json")
TABLES = re.compile(r"(vocabulary|tagsets|keys|key_names|partitions|expires)\.arrow(\.[0-9]{5,9})?")
_SNAPSHOTS = re.compile(rf"snapshot-{_SUM}")
_SUMS = re.compile(_SUM)

_LARGEST = 2**63 - 1
_ALWAYS = ("vocabulary", "tagsets", "keys", "partitions")

#: Accepts a value, or raises ValueError
_Check = Callable[[Any], None]


def check_manifest(manifest: Any) -> None:
    """See that all that is read of a manifest has the right form.

    Parameters
    ----------
    manifest : dict
        Of format 3 or newer, or brought into that form.

    Raises
    ------
    ValueError
        Says which value is wrong.
    """
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
        epochs=_epochs,
    )
    for segment in manifest["segments"]:
        _check_tables(segment["files"], manifest["key_type"])


def _segment(found: Any) -> None:
    _fields(
        found, "segment",
        name=_name(SEGMENTS), rows=_number(), tags=_number(), seed=_number(0, 2**64 - 1), files=_files,
    )  # fmt: skip
    _fields(found, "segment", optional=True, deleted=_deleted, constraints=_flag, areas=_flag)


def _deleted(found: Any) -> None:
    _fields(found, "deleted", name=_name(DELETIONS), rows=_number())
    _file(found)


def _kept(found: Any) -> None:
    _fields(found, "kept", name=_name(KEPT), number=_number(), sets=_number(), until=_time)
    _file(found)
    if found["name"] != f"MANIFEST-{found['number']}.json":
        raise ValueError(f"kept: {found['name']!r} is not of snapshot {found['number']}")


def _staged(found: Any) -> None:
    _file(found)
    _fields(found, "staged", name=_name(CHANGES), changes=_number(most=found["bytes"]))


def _file(found: Any) -> None:
    _fields(found, "file", bytes=_number(), xxh3_64=_name(_SUMS))


def _files(found: Any) -> None:
    for name, each in _mapping(found).items():
        _name(TABLES)(name)
        _file(each)


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


def _epochs(found: Any) -> None:
    for each in _mapping(found).values():
        _number()(each)


# -- values ------------------------------------------------------------------------------------------------------------


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
