"""Files that hold conditions have formats of their own, which older versions refuse; all others stay as they were."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.agreement import index_of
from support.index_files import contents_of

from tagmatch import Circle, IndexVersionError, TagMatch, Where, backup

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
LATE = datetime(9000, 1, 1, tzinfo=UTC)


def format_of(index: Path, manifest: str = "MANIFEST.json") -> int:
    found: int = json.loads((index / manifest).read_text())["format"]
    return found


def log_formats(index: Path, kind: str = "staged") -> list[int]:
    return [struct.unpack_from("<I", file.read_bytes(), 4)[0] for file in sorted(index.glob(f"{kind}-*.log"))]


AREA, SHOWN, BOX = Circle(1, 2, 3), Where("within circle(1, 2, 3)"), "not within box(1, 2, 3, 4)"
#: Changes one after the other, and of which formats the index and its logs are after each
CHANGES: list[list[tuple[Any, int, list[int]]]] = [
    [
        (lambda tm: tm.add_set(["a"], 1), 3, [1]),
        (lambda tm: tm.add_set(["a"], 2, where="x < 1 or x > 5"), 5, [3]),
        (lambda tm: tm.add_set(["b"], 3, expires=LATE), 5, [2]),
        (lambda tm: tm.remove_set(["a"], 2, where="x < 1 or x > 5"), 4, [3]),
        (lambda tm: tm.remove_sets([["b"]], [3]), 3, [1]),
    ],
    [
        (lambda tm: tm.add_set(["a"], 1), 3, [1]),
        (lambda tm: tm.add_set(["a"], 2, where="x = 1"), 5, [3]),
        (lambda tm: tm.add_set(["a"], 2, area=AREA, expires=LATE), 6, [4]),
        (lambda tm: tm.add_sets([["b"]], [3], where=[f"x = 1 or {BOX}"]), 6, [4]),
        (lambda tm: tm.remove_sets([["b"]], [3], where=BOX), 6, [4]),
        (lambda tm: tm.remove_sets([["a"]], [2], area=[AREA]), 5, [4]),
        (lambda tm: tm.remove_sets([["a"], ["b"]], [2, 3], where="x = 1"), 3, [3]),
    ],
]


@pytest.mark.parametrize("changes", CHANGES, ids=["conditions", "areas"])
def test_only_indexes_with_conditions_have_formats_of_their_own(tmp_path: Path, changes: Any) -> None:
    """Also beside keys that expire, and only as long as there are some."""
    index = tmp_path / "i"
    for change, *formats in changes:
        with TagMatch(index, **OPTIONS) as tm:
            change(tm)
            logs = log_formats(index)
            tm.consolidate(full=True)
            assert [format_of(index), logs] == formats
    index_of([["a"]], [1], path=tmp_path / "plain", **OPTIONS).close()
    files, plain = contents_of(index), contents_of(tmp_path / "plain")
    assert {name for name in files if files[name] != plain.get(name)} == {"MANIFEST.json"}


@pytest.mark.parametrize("is_bulk", [False, True])
@pytest.mark.parametrize(
    ("options", "stored", "log", "version"),
    [
        ({"expires": LATE}, "b", 2, 4),
        ({"where": "x = 1"}, ["b", Where("x = 1")], 3, 5),
        ({"area": AREA}, ["b", SHOWN], 4, 6),
    ],
)
def test_older_versions_refuse_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bulk: bool, options: Any, stored: Any, log: int, version: int
) -> None:
    """In the log, where those before can be read, and in the index."""
    index = tmp_path / "i"
    with TagMatch(index, durability="os", **OPTIONS) as tm:
        tm.add_set(["a"], 1)
        if is_bulk:
            tm.add_sets([["a"], ["b"]], [3, 4], **{name: [None, value] for name, value in options.items()})
        else:
            tm.add_set(["b"], 4, **options)
    assert log_formats(index) == [1, log]
    with monkeypatch.context() as older:
        older.setattr("tagmatch.model.storage.journal.scan.LOG_VERSION", log - 1)
        with pytest.raises(IndexVersionError, match=rf"staged-\d*2\.log has format {log}, .* up to {log - 1}; upgrade"):
            TagMatch(index, **OPTIONS)
    with TagMatch(index, **OPTIONS) as tm:
        tm.consolidate()
        assert dict(tm)[frozenset(stored)] == (4,)
    monkeypatch.setattr("tagmatch.model.storage.format.FORMAT_VERSION", version - 1)
    with pytest.raises(IndexVersionError, match=rf"has format {version}, .* up to {version - 1}; upgrade tagmatch"):
        TagMatch.open(index, **OPTIONS)


def test_small_segments_earlier_snapshots_and_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever segment has them; a snapshot that is kept has a format of its own, as has what is staged in a copy."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)
    index, copy = tmp_path / "i", tmp_path / "copy"
    with index_of([[f"t{i}"] for i in range(100)], range(100), path=index, keep_snapshots=1, **OPTIONS) as tm:
        tm.add_set(["b"], 4, where="x = 1")
        tm.consolidate()
        assert (tm.stats()["segments"], format_of(index)) == (2, 5)
        tm.add_set(["c"], 5)
        tm.remove_set(["b"], 4, where="x = 1")
        tm.consolidate(full=True)
        assert (format_of(index), format_of(index, "MANIFEST-2.json")) == (3, 5)
        tm.add_set(["d"], 6, where="x = 2")
        backup(index, copy)
    assert (format_of(copy), log_formats(copy, "changes")) == (3, [3])
    with TagMatch(copy, **OPTIONS) as tm:
        tm.consolidate()
        assert tm.match(["d"], {"x": 2}) == [6]
    assert format_of(copy) == 5
    with TagMatch.open(index, snapshot=2, **OPTIONS) as tm:
        assert tm.match(["b"], {"x": 1}) == [4]
