"""Areas and moves beside other features: times, segments, snapshots by number, signatures, and reloading."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from support.expiring import BEGIN, set_clock
from support.waiting import wait_until

from tagmatch import Box, Circle, Near, TagMatch
from tagmatch.model.options import Layout

HERE, AROUND = (9.0, 45.0), Box(8, 44, 10, 46)
OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}


def test_keys_that_expire_are_no_longer_near(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = set_clock(monkeypatch)
    clock.now = BEGIN
    with TagMatch(**OPTIONS) as tm:
        tm.add_set(["a"], 1, area=Near(10), expires=timedelta(seconds=10))
        tm.add_set(["a"], 2, area=Near(10))
        tm.add_set(["a"], 3, area=Circle(*HERE, 10), expires=timedelta(seconds=10))
        tm.move([1, 2], *HERE)
        tm.consolidate()
        assert sorted(tm.match(["a"], location=HERE)) == [1, 2, 3]
        clock.pass_by(11)
        wait_until(lambda: tm.match(["a"], location=HERE) == [2])
        assert tm.match(["a"], within=AROUND) == [2]
        tm.move([1], *HERE)
        tm.add_set(["a"], 1, area=Near(10))
        tm.consolidate()
        assert sorted(tm.match(["a"], location=HERE)) == [1, 2]


def test_string_keys_in_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has numbers of its own for them; clients have their names."""
    monkeypatch.setattr("tagmatch.partitioner.consolidation.FEW_SETS", 0)
    monkeypatch.setattr("tagmatch.merging.Merging.begin", lambda _: None)
    with TagMatch(key_type="string", **OPTIONS) as tm:
        names = [f"client {number}" for number in range(60)]
        tm.add_sets([["a"]] * 60, names, area=Near(10))
        tm.add_sets([["b", str(number)] for number in range(60)], names, area=Near(10))
        tm.consolidate()
        tm.add_sets([["c"]] * 3, ["new", *names[-2:]], area=Near(10))
        tm.consolidate()
        assert tm.stats()["segments"] == 2
        tm.move([names[-1], "new", names[0]], *HERE)
        assert sorted(tm.match(["a", "c"], location=HERE)) == sorted([names[0], names[-1], names[-1], "new"])
        assert sorted(tm.match(["a", "c"], within=AROUND)) == sorted([names[0], names[-1], names[-1], "new"])
        tm.consolidate(full=True)
        assert sorted(tm.match(["a", "c"], location=HERE)) == sorted([names[0], names[-1], names[-1], "new"])
        tm.check()


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


@pytest.mark.parametrize("layout", get_args(Layout))
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


def test_explain_has_the_keys_of_each_set_that_are_near() -> None:
    """A client that is far, and has another set that is an answer, is none of those near."""
    with TagMatch(**OPTIONS) as tm:
        tm.add_sets([["a"], ["b"], ["b"]], [7, 7, 8], area=[None, Near(10), Near(10)])
        tm.consolidate()
        tm.move([7, 8], [20, HERE[0]], [0, HERE[1]])
        for at, expected in (({"location": HERE}, {"a": (7,), "b": (8,)}), ({"within": AROUND}, {"b": (8,)})):
            found = tm.explain(["a", "b"], **at)
            assert {tag: keys for tags, keys in found for tag in tags & {"a", "b"}} == expected
