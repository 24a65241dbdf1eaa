"""Sets with areas, and messages with places, against plain Python; clients that move; both geometries."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.agreement import index_of
from support.distances import HALF_WAY
from support.index_files import contents_of
from support.waiting import wait_until

import tagmatch
from tagmatch import Circle, IndexCorruptError, InvalidTypeError, InvalidValueError, Near, TagMatch, backup, restore
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.model.storage.positions import open_positions

pytest_plugins = ["support.s3_bucket"]

SWAPPED = "lon and lat seem swapped: lon comes first"


@pytest.mark.parametrize(
    "nowhere",
    [None, math.nan, [None], [math.nan], np.array([math.nan]), pa.array([None]), pa.array([None], pa.float32()),
     pa.chunked_array([[None]], pa.int64()), pa.chunked_array([], pa.null())],
)  # fmt: skip
def test_ways_to_leave(nowhere):
    with index_of([[], []], [1, 2], area=Near(10), device="cpu") as tm:
        tm.move([1, 2], [9.0, 9.0], [45, 45])
        some = isinstance(nowhere, pa.ChunkedArray) and not len(nowhere)
        tm.move([] if some else [1], nowhere, nowhere)
        assert sorted(tm.match([], location=(9, 45))) == ([1, 2] if some else [2])
        tm.move([1, 2], [None, 9.5], [None, 45])
        assert (tm.match([], location=(9, 45)), tm.match([], location=(9.5, 45))) == ([], [2])


_NO_NUMBERS = ([True], ["1"], [1j], "1", object(), [None, "1"], pa.array(["1"]), [[1]], [10**400])
_NO_PLACES = (9.0, "9,45", (1, 2, 3), {1, 2}, (True, 1), ("9", "45"))
_SEVERAL = [{"lon": 1.0, "lat": 2.0}, {"lon": 1.0, "lat": math.nan}]
_XY = [{"x": 1.0, "y": 2.0}]
PLACED = {
    "move one": lambda tm, lon: tm.move([1], lon, [1.0]),
    "move": lambda tm, places: tm.move([1, 2], *places),
    "at": lambda tm, place: tm.match([], location=place),
    "table": lambda tm, column: tm.match_many(pa.table({"location": column})),
}
#: What is wrong with moves, with a message's place, and with columns of places
MISTAKES = [
    *(("move one", wrong, "lon must ") for wrong in _NO_NUMBERS),
    ("move", ([1.0], [1.0, 2.0]), "lon must have a number for each of the 2 clients, not (1,)"),
    ("move", ([1.0, 181.0], [1.0, 2.0]), "row 1: lon must be from -180 to 180, not 181.0"),
    ("move", ([1.0, math.nan], [1.0, 2.0]), "lon and lat: row 1 has only one of both"),
    ("move", ([1.0, math.inf], [1.0, 2.0]), "row 1: lon must be finite, not inf"),
    ("at", (9.0, 91.0), f"location: lat must be from -90 to 90, not 91.0; {SWAPPED}"),
    ("at", (-180.5, 0), "location: lon must be from -180 to 180, not -180.5"),
    ("at", (math.nan, 0), "location: lon must be finite, not nan"),
    *(("at", wrong, "location") for wrong in _NO_PLACES),
    ("table", [None, {"lon": 1.0, "lat": 95.0}], f"'location': row 1: lat must be from -90 to 90, not 95.0; {SWAPPED}"),
    ("table", _SEVERAL, "'location': row 1: lat must be finite, not nan"),
    ("table", [{"lon": 1.0, "lat": None}], "'location': row 0 has no lat"),
    ("at", [(9.0, 45.0), (9.0, 91.0)], f"location: place 1: lat must be from -90 to 90, not 91.0; {SWAPPED}"),
    (
        "at",
        [(9.0, 45.0), None],
        "location: place 1 must be two numbers, (lon, lat), or a dict with lon and lat, not NoneType",
    ),
    ("table", [[[1.0, 2.0]], [[1.0, 2.0], [1.0, 95.0]]], "'location': row 1: lat must be from -90 to 90, not 95.0"),
    ("table", [[], None, [[1.0, 2.0], [1.0]]], "'location': row 2 must have two numbers, lon and lat"),
    ("table", [[[1.0, 2.0]], [[1.0, 2.0], None]], "'location': row 1 has a null in its list of places"),
    ("table", [[], [{"lon": 1.0, "lat": 2.0}, {"lon": 1.0, "lat": None}]], "'location': row 1 has no lat"),
    ("table", [[1.0, 2.0], [1.0]], "'location': row 1 must have two numbers, lon and lat"),
    ("table", _XY, "'location' must have the fields lon and lat, not ['x', 'y']"),
]


@pytest.mark.parametrize(("way", "wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_places_that_are_none(way, wrong, message):
    with index_of([[], []], [1, 2], area=Near(5), device="cpu") as tm:
        tm.move([1, 2], 5, 5)
        with pytest.raises((InvalidTypeError, InvalidValueError, tagmatch.NullError)) as told:
            PLACED[way](tm, wrong)
        assert str(told.value).removeprefix("column ").startswith(message)
        assert sorted(tm.match([], location=(5, 5))) == [1, 2]
        with pytest.raises(InvalidTypeError, match="within must be a circle, a box, a polygon or a corridor"):
            tm.match([], within=Near(5))


def test_damaged_positions_are_noticed(tmp_path):
    """Any byte that is changed; some say nothing of positions, as those that Arrow fills up with."""
    file = tmp_path / "index" / "POSITIONS.arrow"
    with TagMatch(tmp_path / "index") as tm:
        tm.move([1, 2], [9, 10], [45, 46])
        tm.consolidate()
    text, noticed = file.read_bytes(), 0
    for place in range(0, len(text), 11):
        file.write_bytes(text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :])
        try:
            found = open_positions(LocalFolder(file.parent), "integer", plane=False)
            assert (found.keys.to_pylist(), found.lon.tolist(), found.lat.tolist()) == ([1, 2], [9, 10], [45, 46])
        except IndexCorruptError:
            noticed += 1
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
            with pytest.raises(tagmatch.IndexExistsError):
                save()
    assert [file.name for file in (tmp_path / "other").iterdir()] == ["letter.txt"]


def test_positions_are_saved_by_several_at_once(path):
    """Threads, and objects that have their own positions: each time there is a whole file, of one of them."""
    with TagMatch(path, device="cpu") as tm:
        tm.consolidate()
        (path / "POSITIONS.arrow.new").write_bytes(b"half")  # as a writer that was killed leaves it

    def save(number):
        with TagMatch(path, device="cpu") as tm:
            for _ in range(10):
                tm.move(range(1000), number, number)
                tm.save_positions()
                saved = open_positions(LocalFolder(path), "integer", plane=False)
                assert len(set(saved.lon.tolist())) == 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    assert not list(path.glob("*.new"))


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


HERE, OPTIONS = (9.0, 45.0), {"device": "cpu", "threads": 1}


def test_positions_stay_whatever_is_taken_over(path: Path) -> None:
    """A reader has its own positions, which it keeps; one of an earlier snapshot has none at first."""
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


def _positions(path: Any) -> dict[str, float]:
    """Clients by their places, of those with a `near`."""
    with TagMatch.open(path, **OPTIONS) as tm:
        return {key: lon for lon in (1.0, 2.0, 3.0) for key in tm.match(["a"], location=(lon, 0))}


def test_positions_come_with_copies(tmp_path: Path, uri: str) -> None:
    """Those that were saved last; a copy restored over an index has only these."""
    index, copy, other = tmp_path / "index", tmp_path / "backup", tmp_path / "other"
    with TagMatch(index, key_type="string", **OPTIONS) as tm:
        tm.add_sets([["a"], ["a"]], ["ana", "bo"], area=Near(10))
        tm.move(["ana", "bo"], [1, 2], 0)
        tm.consolidate()
        first = backup(index, copy)
        backup(index, uri)
        assert _positions(copy) == {"ana": 1, "bo": 2}
        tm.move(["ana"], 3, 0)
        backup(index, copy)
        assert _positions(copy) == {"ana": 1, "bo": 2}
        tm.save_positions()
        second = backup(index, copy, keep_snapshots=1)
        assert _positions(copy) == {"ana": 3, "bo": 2}
        assert first.new_bytes > second.new_bytes > 0
    for place in (copy, uri):
        restore(place, other, replace=True)
        assert _positions(other) == {"ana": 3 if place == copy else 1, "bo": 2}
    restore(copy, other, snapshot=TagMatch.snapshots(copy)[0].number, replace=True)
    assert _positions(other) == {}
    assert not list(other.glob("POSITIONS*"))
    restore(copy, other, replace=True)
    assert _positions(other) == {"ana": 3, "bo": 2}


@pytest.mark.parametrize("plane", [False, True])
def test_the_other_geometry(tmp_path: Path, plane: bool) -> None:
    """Staged areas stay staged, no others join them, and neither their snapshot nor positions are taken over."""

    def opened(name: str, *, plane: bool) -> TagMatch[Any]:
        return TagMatch(tmp_path / name, plane=plane, **OPTIONS)

    area, path = Circle(1, 2, 3), tmp_path / "index"
    with opened("index", plane=plane) as tm:
        tm.add_set(["a"], 1)
        tm.consolidate()
    with opened("index", plane=plane) as tm:
        tm.add_set(["b"], 2, area=area)
    before = contents_of(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", tagmatch.StagedChangesWarning)
        with opened("index", plane=not plane) as other:
            for change in (other.consolidate, lambda: other.add_set(["c"], 3, area=area)):
                with pytest.raises(InvalidValueError, match=f"staged in {path} have areas on the .*plane={plane}"):
                    change()
                assert (other.stats()["staged"], other.match(["a", "b"])) == (1, [1])
            assert contents_of(path) == before
            with opened("index", plane=plane) as tm:
                tm.consolidate()
                assert sorted(tm.match(["a", "b", "c"], location=(1, 2))) == [1, 2]
            with pytest.raises(InvalidValueError, match=f"plane={plane}"):
                other.reload()
            assert other.match(["a", "b"]) == [1]
    with opened("moved", plane=plane) as tm:
        tm.move([7], 1, 2)
        tm.save_positions()
    with pytest.raises(InvalidValueError, match=f"open the index with plane={plane}, or remove the file"):
        opened("moved", plane=not plane)
    with opened("moved", plane=plane) as tm:
        assert tm.stats()["positions"] == 1
        tm.move([7], None, None)
        tm.save_positions()
    with opened("moved", plane=not plane) as tm:
        assert tm.stats()["positions"] == 0


@pytest.mark.parametrize("x", [2**53 + 1, 2**60, -(2**63), 2**64 - 1])
def test_integers_of_any_size_are_places_on_the_plane(x: int) -> None:
    """As Python has them and in columns: each is the nearest double."""
    with TagMatch(plane=True, device="cpu") as tm:
        tm.add_set(["a"], 1, area=Circle(float(x), 0, 5))
        tm.add_set(["a"], 2, area=Near(5))
        tm.consolidate()
        assert tm.match(["a"], location=(x, 0)) == [1]
        column = pa.array([x], pa.uint64() if x > 0 else pa.int64())
        place = pa.StructArray.from_arrays([column, pa.array([0])], ["x", "y"])
        assert tm.match_many(pa.table({"tags": [["a"]], "location": place})).to_pylist() == [[1]]
        for xs in ([x], column):
            tm.move([2], xs, [0])
            assert sorted(tm.match(["a"], location=(x, 0))) == [1, 2]
        area = pa.StructArray.from_arrays([column, pa.array([0]), pa.array([5])], ["lon", "lat", "metres"])
        tm.add_sets([["b"]], [3], area=area)
        tm.consolidate()
        assert tm.match(["b"], location=(x, 0)) == [3]
