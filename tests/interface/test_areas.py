"""Sets with areas, and messages that say where they are, against plain Python; and clients that move."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Oracle
from support.areas import FIELDS
from support.areas_and_moves import struct_of
from support.distances import UndecidedError
from support.located import messages, moves, subscriptions

from tagmatch import (
    Box,
    IndexCorruptError,
    IndexExistsError,
    InvalidTypeError,
    InvalidValueError,
    Near,
    NullError,
    TagMatch,
    TagMatchError,
)
from tagmatch.model.storage.positions import open_positions
from tagmatch.pipeline.areas import index


@pytest.fixture(scope="module", params=["contents", "areas", "either"])
def found_first(request):
    """What of sets with areas is looked for first: all contents, all areas, or what takes less time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "either":
            areas = request.param == "areas"
            patch.setattr(index, "areas_come_first", lambda required, _: np.full(len(required), areas))
        yield request.param


@pytest.mark.usefixtures("found_first")
@given(data=st.data(), plane=st.booleans(), layout=st.sampled_from(["rarest", "balanced"]))
def test_any_way_to_ask(data, plane, layout):
    """Every call that takes a query, alone and in a table, while clients move and sets change."""
    drawn = data.draw(st.lists(subscriptions(plane=plane), min_size=1, max_size=8))
    oracle = Oracle(plane=plane)
    with TagMatch(layout=layout, device="cpu", threads=2, plane=plane) as tm:
        half, removed = len(drawn) // 2, data.draw(st.sets(st.sampled_from(drawn)))
        for each in (tm, oracle):
            for some in (drawn[:half], drawn[half:]):
                for tags, client, where, area in some:
                    each.add_set(tags, client, where=where, area=area)
                each.consolidate()
            for tags, client, where, area in removed:
                each.remove_set(tags, client, where=where, area=area)
            each.consolidate()
        asked = []
        for _ in range(3):
            moved = data.draw(moves(plane=plane))
            for each in (tm, oracle):
                each.move(list(moved), [place[0] for place in moved.values()], [place[1] for place in moved.values()])
            asked.append(data.draw(messages(plane=plane)))
            with suppress(UndecidedError):
                agrees(tm, oracle.match(**asked[-1]), **asked[-1])
        for message, keys in zip(
            asked, tm.match_many(table_of(asked, plane=plane), unique=True).to_pylist(), strict=True
        ):
            with suppress(UndecidedError):
                assert keys == sorted(oracle.match_unique(**message))


def agrees(tm: TagMatch, expected: list[int], **message: Any) -> None:
    assert sorted(tm.match(**message)) == expected
    assert tm.match_unique(**message) == set(expected)
    assert sorted(tm.submit(**message).result()) == expected
    assert asyncio.run(tm.amatch(**message, unique=True)) == set(expected)
    assert sorted(key for _, keys in tm.explain(**message) for key in keys) == expected


def table_of(asked: list[dict[str, Any]], *, plane: bool) -> pa.Table:
    names = ("x", "y") if plane else ("lon", "lat")
    located = [message["location"] and dict(zip(names, message["location"], strict=True)) for message in asked]
    within = pa.struct({"kind": pa.string(), **dict.fromkeys(FIELDS, pa.float64())})
    return pa.table(
        {
            "tags": pa.array([message["tags"] for message in asked], pa.list_(pa.string())),
            "x": pa.array([message["attributes"].get("x") for message in asked], pa.int64()),
            "location": pa.array(located, pa.struct(dict.fromkeys(names, pa.float64()))),
            "within": pa.array([struct_of(message["within"]) for message in asked], within),
        }
    )


def test_keys_that_are_strings_move():
    with TagMatch(key_type="string", device="cpu") as tm:
        tm.add_sets([["a"], ["a"], []], ["ana", "bo", "cy"], area=Near(1000))
        tm.add_set(["a"], "dee")
        tm.consolidate()
        tm.move(["ana", "cy", "dee"], [9.0, 9.0, 9.0], [45.0, 45.0, 45.0])
        assert sorted(tm.match(["a"], location=(9.001, 45.0))) == ["ana", "cy", "dee"]
        assert sorted(tm.match(["a"], within=Box(8, 44, 10, 46))) == ["ana", "cy", "dee"]
        tm.move(["ana", "dee"], math.nan, math.nan)
        assert sorted(tm.match(["a"], within=Box(8, 44, 10, 46))) == ["cy"]
        assert tm.match(["a"]) == ["dee"]
        assert tm.stats()["positions"] == 1


@pytest.mark.parametrize(
    "nowhere",
    [None, math.nan, [None], [math.nan], np.array([math.nan]), pa.array([None]), pa.array([None], pa.float32()),
     pa.chunked_array([[None]], pa.int64()), pa.chunked_array([], pa.null())],
)  # fmt: skip
def test_ways_to_leave(nowhere):
    """Nulls, as Arrow and as Python have them, and NaN."""
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[], []], [1, 2], area=Near(10))
        tm.consolidate()
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


def test_positions_stay_when_segments_are_merged():
    with TagMatch(device="cpu") as tm:
        for key in range(20):
            tm.add_set(["a"], key, area=Near(10))
            tm.move([key], key, 45)
            tm.consolidate(full=key % 7 == 0)
        for key in range(20):
            assert tm.match(["a"], location=(key, 45)) == [key]


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ((9.0, 91.0), "location: lat must be from -90 to 90, not 91.0; lon and lat seem swapped: lon comes first"),
        ((-180.5, 0), "location: lon must be from -180 to 180, not -180.5"),
        ((math.nan, 0), "location: lon must be finite, not nan"),
    ],
)
def test_locations_that_are_nowhere(location, message):
    with TagMatch(device="cpu") as tm, pytest.raises(InvalidValueError) as error:
        tm.match([], location=location)
    assert str(error.value) == message


@pytest.mark.parametrize("location", [9.0, "9,45", (1, 2, 3), {1, 2}, (True, 1), ("9", "45")])
def test_no_locations(location):
    with TagMatch(device="cpu") as tm, pytest.raises(InvalidTypeError, match="location"):
        tm.match([], location=location)


def test_within_is_no_near():
    with TagMatch(device="cpu") as tm, pytest.raises(InvalidTypeError, match="within must be a Circle or a Box"):
        tm.match([], within=Near(5))


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (
            [None, {"lon": 1.0, "lat": 95.0}],
            InvalidValueError,
            "column 'location': row 1: lat must be from -90 to 90, not 95.0; lon and lat seem swapped: lon comes first",
        ),
        ([{"lon": 1.0, "lat": math.nan}], InvalidValueError, "column 'location': row 0: lat must be finite, not nan"),
        ([{"lon": 1.0, "lat": None}], NullError, "column 'location': row 0 has no lat"),
        ([[1.0, 2.0], [1.0]], InvalidValueError, "column 'location': row 1 must have two numbers, lon and lat"),
        (
            [{"x": 1.0, "y": 2.0}],
            InvalidTypeError,
            "column 'location' must have the fields lon and lat, not ['x', 'y']",
        ),
    ],
)
def test_columns_of_locations_with_a_mistake(column, error, message):
    with TagMatch(device="cpu") as tm, pytest.raises(error) as raised:
        tm.match_many(pa.table({"location": column}))
    assert str(raised.value) == message


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
    with TagMatch(device="cpu") as tm:
        tm.add_sets([[], []], [1, 2], area=Near(5))
        tm.consolidate()
        tm.move([1, 2], 5, 5)
        with pytest.raises(InvalidValueError) as error:
            tm.move([1, 2], lon, lat)
        assert str(error.value) == message
        assert sorted(tm.match([], location=(5, 5))) == [1, 2]


def test_positions_last(tmp_path):
    """Those of the last consolidation, or of when they were saved."""
    with TagMatch(tmp_path / "index", key_type="string") as tm:
        tm.add_sets([[], []], ["ana", "bo"], area=Near(10))
        tm.move(["ana", "bo"], [9, 10], [45, 46])
        tm.consolidate()
        tm.move(["bo"], 11, 47)
    with TagMatch.open(tmp_path / "index") as tm:
        assert tm.match([], location=(10, 46)) == ["bo"]
        tm.move(["bo"], 11, 47)
        tm.save_positions()
    with TagMatch.open(tmp_path / "index") as tm:
        assert tm.match([], location=(11, 47)) == ["bo"]
        assert tm.match([], location=(9, 45)) == ["ana"]
        assert tm.match([], location=(10, 46)) == []


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
    with TagMatch(tmp_path / "new" / "index") as tm:
        tm.add_set([], 7, area=Near(10))
        tm.consolidate()
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


def test_positions_in_memory_cannot_be_saved():
    with TagMatch() as tm, pytest.raises(InvalidValueError, match="no folder to save positions to"):
        tm.save_positions()
