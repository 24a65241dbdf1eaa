"""Indexes on the plane that are opened as if on the sphere, and the other way round: nothing is lost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from support.index_files import contents_of

from tagmatch import Circle, InvalidValueError, StagedChangesWarning, TagMatch

GEOMETRIES = pytest.mark.parametrize("plane", [False, True])


def opened(path: Path, *, plane: bool) -> TagMatch[Any]:
    return TagMatch(path, device="cpu", threads=1, plane=plane)


@GEOMETRIES
def test_areas_of_the_other_geometry(tmp_path: Path, plane: bool) -> None:
    with opened(tmp_path / "index", plane=plane) as tm:
        tm.add_set(["a"], 1, area=Circle(1, 2, 3))
        tm.consolidate()
    before = contents_of(tmp_path / "index")
    for way in (opened, TagMatch.open):
        with pytest.raises(InvalidValueError, match=f"open the index with plane={plane}"):
            way(tmp_path / "index", plane=not plane)
    assert contents_of(tmp_path / "index") == before
    with opened(tmp_path / "index", plane=plane) as tm:
        assert tm.match(["a"], location=(1, 2)) == [1]


@GEOMETRIES
def test_staged_areas_of_the_other_geometry_stay_staged(tmp_path: Path, plane: bool) -> None:
    """Who opens the index otherwise can neither consolidate them nor stage others beside them."""
    path = tmp_path / "index"
    with opened(path, plane=plane) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    with opened(path, plane=plane) as tm:
        tm.add_set(["b"], 2, area=Circle(1, 2, 3))
    before = contents_of(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", StagedChangesWarning)
        with opened(path, plane=not plane) as tm:
            for change in (tm.consolidate, lambda: tm.add_set(["c"], 3, area=Circle(1, 2, 3))):
                with pytest.raises(InvalidValueError, match=f"staged in {path} have areas on the .*plane={plane}"):
                    change()
                assert (tm.stats()["staged"], tm.match(["a", "b"])) == (1, [1])
    assert contents_of(path) == before
    with opened(path, plane=plane) as tm:
        tm.consolidate()
        assert sorted(tm.match(["a", "b", "c"], location=(1, 2))) == [1, 2]


@GEOMETRIES
def test_a_snapshot_of_the_other_geometry_is_not_taken_over(tmp_path: Path, plane: bool) -> None:
    with opened(tmp_path / "index", plane=plane) as tm, opened(tmp_path / "index", plane=not plane) as other:
        tm.add_set(["a"], 1)
        tm.consolidate()
        other.reload()
        tm.add_set(["b"], 2, area=Circle(1, 2, 3))
        tm.consolidate()
        with pytest.raises(InvalidValueError, match=f"plane={plane}"):
            other.reload()
        assert other.match(["a", "b"]) == [1]


@GEOMETRIES
def test_positions_of_the_other_geometry(tmp_path: Path, plane: bool) -> None:
    with opened(tmp_path / "index", plane=plane) as tm:
        tm.move([7], 1, 2)
        tm.save_positions()
    with pytest.raises(InvalidValueError, match=f"open the index with plane={plane}, or remove the file"):
        opened(tmp_path / "index", plane=not plane)
    with opened(tmp_path / "index", plane=plane) as tm:
        assert tm.stats()["positions"] == 1
        tm.move([7], None, None)
        tm.save_positions()
    with opened(tmp_path / "index", plane=not plane) as tm:
        assert tm.stats()["positions"] == 0
