"""Sets with areas, and messages that say where they are, against plain Python; clients that move; both geometries."""

from __future__ import annotations

import math
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.agreement import index_of
from support.distances import HALF_WAY
from support.index_files import contents_of
from support.waiting import wait_until

from tagmatch import (
    Box,
    Circle,
    IndexCorruptError,
    IndexExistsError,
    InvalidTypeError,
    InvalidValueError,
    Near,
    NullError,
    StagedChangesWarning,
    TagMatch,
    TagMatchError,
)
from tagmatch.model.storage.positions import open_positions

SWAPPED = "lon and lat seem swapped: lon comes first"


@pytest.mark.parametrize(
    "nowhere",
    [None, math.nan, [None], [math.nan], np.array([math.nan]), pa.array([None]), pa.array([None], pa.float32()),
     pa.chunked_array([[None]], pa.int64()), pa.chunked_array([], pa.null())],
)  # fmt: skip
def test_ways_to_leave(nowhere):
    """Nulls, as Arrow and as Python have them, and NaN."""
    with index_of([[], []], [1, 2], area=Near(10), device="cpu") as tm:
        tm.move([1, 2], [9.0, 9.0], [45, 45])
        some = isinstance(nowhere, pa.ChunkedArray) and not len(nowhere)
        tm.move([] if some else [1], nowhere, nowhere)
        assert sorted(tm.match([], location=(9, 45))) == ([1, 2] if some else [2])
        tm.move([1, 2], [None, 9.5], [None, 45])
        assert (tm.match([], location=(9, 45)), tm.match([], location=(9.5, 45))) == ([], [2])


@pytest.mark.parametrize("wrong", [[True], ["1"], [1j], "1", object(), [None, "1"], pa.array(["1"]), [[1]], [10**400]])
def test_no_numbers_to_move_to(wrong):
    with TagMatch(device="cpu") as tm:
        with pytest.raises((InvalidTypeError, InvalidValueError), match=r"^lon must "):
            tm.move([1], wrong, [1.0])
        assert tm.stats()["positions"] == 0


def test_clients_that_move_before_they_subscribe():
    with TagMatch(device="cpu") as tm:
        tm.move(np.array([7]), pa.array([9.0]), pa.array([45]))
        tm.add_set([], 7, area=Near(10))
        tm.consolidate()
        assert tm.match([], location=(9, 45)) == [7]
        tm.move([7], [math.nan], [math.nan])
        assert tm.match([], location=(9, 45)) == []


@pytest.mark.parametrize(
    ("location", "error", "message"),
    [
        ((9.0, 91.0), InvalidValueError, f"location: lat must be from -90 to 90, not 91.0; {SWAPPED}"),
        ((-180.5, 0), InvalidValueError, "location: lon must be from -180 to 180, not -180.5"),
        ((math.nan, 0), InvalidValueError, "location: lon must be finite, not nan"),
        *((wrong, InvalidTypeError, "location") for wrong in (9.0, "9,45", (1, 2, 3), {1, 2}, (True, 1), ("9", "45"))),
    ],
)
def test_locations_that_are_none(location, error, message):
    with TagMatch(device="cpu") as tm:
        with pytest.raises(error, match=f"^{message}"):
            tm.match([], location=location)
        with pytest.raises(InvalidTypeError, match="within must be a Circle or a Box"):
            tm.match([], within=Near(5))


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ([None, {"lon": 1.0, "lat": 95.0}], InvalidValueError,
         f"row 1: lat must be from -90 to 90, not 95.0; {SWAPPED}"),
        ([{"lon": 1.0, "lat": math.nan}], InvalidValueError, "row 0: lat must be finite, not nan"),
        ([{"lon": 1.0, "lat": None}], NullError, "row 0 has no lat"),
        ([[1.0, 2.0], [1.0]], InvalidValueError, "row 1 must have two numbers, lon and lat"),
    ],
)  # fmt: skip
def test_columns_of_locations_with_a_mistake(column, error, message):
    with TagMatch(device="cpu") as tm:
        with pytest.raises(error) as raised:
            tm.match_many(pa.table({"location": column}))
        assert str(raised.value) == f"column 'location': {message}"
        with pytest.raises(InvalidTypeError, match=r"'location' must have the fields lon and lat, not \['x', 'y'\]"):
            tm.match_many(pa.table({"location": [{"x": 1.0, "y": 2.0}]}))


@pytest.mark.parametrize(
    ("lon", "lat", "message"),
    [
        ([1.0], [1.0, 2.0], "lon must have a number for each of the 2 clients, not (1,)"),
        ([1.0, 181.0], [1.0, 2.0], "row 1: lon must be from -180 to 180, not 181.0"),
        ([1.0, math.nan], [1.0, 2.0], "lon and lat: row 1 has only one of both"),
        ([1.0, math.inf], [1.0, 2.0], "row 1: lon must be finite, not inf"),
    ],
)
def test_moves_to_nowhere(lon, lat, message):
    with index_of([[], []], [1, 2], area=Near(5), device="cpu") as tm:
        tm.move([1, 2], 5, 5)
        with pytest.raises(InvalidValueError) as error:
            tm.move([1, 2], lon, lat)
        assert str(error.value) == message
        assert sorted(tm.match([], location=(5, 5))) == [1, 2]


def test_damaged_positions_are_noticed(tmp_path):
    """Any byte that is changed; some say nothing of positions, as those that Arrow fills up with."""
    file = tmp_path / "index" / "POSITIONS.arrow"
    with TagMatch(tmp_path / "index") as tm:
        tm.add_sets([[], []], [1, 2], area=Near(10))
        tm.move([1, 2], [9, 10], [45, 46])
        tm.consolidate()
    text, noticed = file.read_bytes(), 0
    for place in range(0, len(text), 11):
        damaged = bytearray(text)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        try:
            found = open_positions(file.parent, "integer", plane=False)
        except IndexCorruptError:
            noticed += 1
        else:
            assert (found.keys.to_pylist(), found.lon.tolist(), found.lat.tolist()) == ([1, 2], [9, 10], [45, 46])
    assert noticed > 10
    file.write_bytes(b"x")
    with pytest.raises(IndexCorruptError, match="remove the file to go on without them"):
        TagMatch.open(tmp_path / "index")


def test_positions_are_saved_before_anything_else(tmp_path):
    """The folder is made for them, and may be that of an index then; nothing else is written over."""
    with TagMatch(tmp_path / "new" / "index") as tm:
        tm.move([7], 9, 45)
        tm.save_positions()
    with index_of([[]], [7], area=Near(10), path=tmp_path / "new" / "index") as tm:
        assert tm.match([], location=(9, 45)) == [7]
    (tmp_path / "other").mkdir()
    with TagMatch(tmp_path / "other") as tm:
        tm.move([7], 9, 45)
        (tmp_path / "other" / "letter.txt").touch()
        for save in (tm.save_positions, tm.consolidate):
            with pytest.raises(IndexExistsError):
                save()
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["letter.txt"]


def test_a_consolidation_that_cannot_save_positions_changes_nothing(tmp_path, monkeypatch):
    with TagMatch(tmp_path / "index") as tm:
        tm.add_set([], 7, area=Near(10))
        tm.move([7], 9, 45)

        def failing(*_):
            raise OSError("no space")

        with monkeypatch.context() as patched:
            patched.setattr("tagmatch.model.storage.positions.replace_file", failing)
            with pytest.raises(TagMatchError, match="cannot write the positions"):
                tm.consolidate()
        assert (tm.stats()["staged"], len(tm)) == (1, 0)
        tm.consolidate()
    with TagMatch.open(tmp_path / "index") as tm:
        assert tm.match([], location=(9, 45)) == [7]


def test_positions_are_saved_by_several_at_once(tmp_path):
    """Threads, and objects that have positions of their own: each time there is a whole file, of one of them."""
    path, failures = tmp_path / "index", []
    with TagMatch(path, device="cpu") as tm:
        tm.consolidate()

    def save(number):
        try:
            with TagMatch(path, device="cpu") as tm:
                for _ in range(10):
                    tm.move(range(1000), number, number)
                    tm.save_positions()
                    saved = open_positions(path, "integer", plane=False)
                    assert len(set(saved.lon.tolist())) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not list(path.glob("*.new"))


def test_positions_of_a_writer_that_was_killed_go(tmp_path):
    with TagMatch(tmp_path / "index") as tm:
        tm.consolidate()
        (tmp_path / "index" / "POSITIONS.arrow.new").write_bytes(b"half")
        tm.add_set([], 1)
        tm.consolidate()
    assert not (tmp_path / "index" / "POSITIONS.arrow.new").exists()


ANTIPODES = [(-170.0, -45.0), (-170.0, -44.9999), (-169.9999, -45.0)]
FAR = [(1e308, -1e308), (1.5e154, 0.0), (1e-170, 0.0), (0.0, 5e-324), (0.0, 0.0)]


@pytest.mark.parametrize(
    ("plane", "middle", "radius", "asked", "expected"),
    [
        (False, (10.0, 45.0), HALF_WAY - 1e-3, ANTIPODES, [False, True, True]),
        (False, (10.0, 45.0), HALF_WAY - 10, ANTIPODES, [False, True, False]),
        (True, (0.0, 0.0), 1.4e154, FAR, [False, False, True, True, True]),
        (True, (0.0, 0.0), 1.7e308, FAR, [True, True, True, True, True]),
        (True, (0.0, 0.0), 1e-200, FAR, [False, False, False, True, True]),
        (True, (0.0, 0.0), 0.0, FAR, [False, False, False, False, True]),
    ],
)
@pytest.mark.parametrize("others", [0, 400])
def test_all_ways_to_ask(plane, middle, radius, asked, expected, others):
    """A circle that stays, a client that moves, and clients within a circle; a message alone, and in a table."""
    circle = Circle(*middle, radius)
    with TagMatch(device="cpu", plane=plane) as tm:
        tm.add_set(["stays"], 1, area=circle)
        tm.add_set(["moves"], 2, area=Near(radius))
        tm.add_set(["asked for"], 3)
        tm.add_sets([["stays"]] * others, range(10, 10 + others), area=Circle(*middle, 0))
        tm.consolidate()
        for place, is_there in zip(asked, expected, strict=True):
            lon, lat = place
            tm.move([2, 3], [middle[0], lon], [middle[1], lat])
            for tags, key in ((["stays"], 1), (["moves"], 2)):
                table = pa.table({"tags": [tags], "location": [list(place)]})
                assert (key in tm.match(tags, location=place)) is is_there
                assert (key in tm.match_many(table).to_pylist()[0]) is is_there
            tags, found = ["asked for"], [3] if is_there else []
            assert tm.match(tags, within=circle) == found
            tm.move([3], [middle[0]], [middle[1]])
            assert tm.match(tags, within=Circle(lon, lat, radius)) == found


HERE, AROUND = (9.0, 45.0), Box(8, 44, 10, 46)
OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}


def test_positions_stay_whatever_is_taken_over(tmp_path: Path) -> None:
    """A reader has positions of its own, which it keeps; one of an earlier snapshot has none at first."""
    path = tmp_path / "index"
    with TagMatch(path, keep_snapshots=2, **OPTIONS) as tm:
        tm.add_set(["a"], 1, area=Near(10))
        tm.move([1], *HERE)
        tm.consolidate()
        with TagMatch.open(path, **OPTIONS) as reader, TagMatch.open(path, auto_reload=0.01, **OPTIONS) as follower:
            assert reader.match(["a"], location=HERE) == [1]
            for each in (reader, follower):
                each.move([1, 2], 20, 0)
            tm.add_set(["a"], 2, area=Near(10))
            tm.consolidate()
            reader.reload()
            wait_until(lambda: follower.stats()["keys"] == 2)
            for each in (reader, follower):
                assert sorted(each.match(["a"], location=(20, 0))) == [1, 2]
            assert tm.match(["a"], location=HERE) == [1]
        with TagMatch.open(path, snapshot=1, **OPTIONS) as first:
            assert (first.stats()["positions"], first.match(["a"], location=HERE)) == (0, [])
            first.move([1, 2], *HERE)
            assert first.match(["a"], location=HERE) == [1]


def test_explain_has_the_keys_of_each_set_that_are_near() -> None:
    """A client that is far, or not within the area, and has another set that is an answer, is none of those near."""
    east = Box(HERE[0] + 0.00002, 44, 10, 46)
    with index_of([["a"], ["b"], ["b"], ["b"]], [7, 7, 8, 9], area=[None, *[Near(10)] * 3], **OPTIONS) as tm:
        tm.move([7, 8, 9], [20, HERE[0], HERE[0] + 0.00005], [0, HERE[1], HERE[1]])
        for at, expected in (
            ({"location": HERE}, {"a": (7,), "b": (8, 9)}),
            ({"within": AROUND}, {"b": (8, 9)}),
            ({"location": HERE, "within": east}, {"b": (9,)}),
        ):
            found = tm.explain(["a", "b"], **at)
            assert {tag: keys for tags, keys in found for tag in tags & {"a", "b"}} == expected


@pytest.mark.parametrize("exact", [True, False])
def test_areas_are_exact_in_any_layout(layout: Any, exact: bool) -> None:
    with TagMatch(layout=layout, exact=exact, **OPTIONS) as tm:
        tm.add_sets([["a", str(number)] for number in range(100)], range(100), area=Near(10))
        tm.add_sets([["b"]] * 3, [200, 201, 202], area=[Circle(*HERE, 5), Circle(20, 0, 5), None])
        tm.consolidate()
        tm.move(range(50), *HERE)
        tm.move([201, 202], *HERE)
        query = ["a", "b", *map(str, range(40, 60))]
        assert sorted(tm.match(query, location=HERE)) == [*range(40, 50), 200, 202]
        assert sorted(tm.match(query, within=AROUND)) == [*range(40, 50), 202]
        assert tm.match(query) == [202]


GEOMETRIES = pytest.mark.parametrize("plane", [False, True])


def opened(path: Path, *, plane: bool) -> TagMatch[Any]:
    return TagMatch(path, device="cpu", threads=1, plane=plane)


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
