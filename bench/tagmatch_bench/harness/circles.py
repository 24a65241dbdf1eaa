"""Systems that match areas alone: asked for the same points and moved in turn, and compared with brute force."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import F64Array, Lists, U32Array, offsets_of
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Result
from tagmatch_bench.harness.timing import Samples
from tagmatch_bench.systems.circles import Circles, Found
from tagmatch_bench.systems.matcher import CallSize
from tagmatch_bench.workloads.location import LocationWorkload

#: What is asked for all messages that were timed, if it is there: sooner than others that were written elsewhere
_REFERENCES = ("Shapely STRtree", "R*-tree")
#: Pairs of a circle and a point that brute force compares, about, and points at least and at most
_COMPARED, _FEWEST, _MOST = 1e9, 20, 1000
#: After moves, a part of them
_AFTER_MOVES = 0.1
#: Circles that answers of a call have at most, about
MOST_FOUND = 1 << 24
_MOST_MOVES, _PASSES = 100_000, 4
#: Of systems with single precision, a squared radius' share by which a squared distance may be off
_SINGLE, _SINGLE_ROUNDS = {"CLCB", "CLCB, CPU"}, 1e-6


@dataclass(frozen=True)
class CircleScenario:
    """Circles, points, and moves."""

    name: str
    circles: Circles
    x: F64Array  # points of messages
    y: F64Array
    ids: U32Array  # moves; as many of these in a row as there are circles are each of another one
    to_x: F64Array
    to_y: F64Array

    @classmethod
    def of(cls, name: str, location: LocationWorkload, messages: int, seed: int) -> CircleScenario:
        """All areas of a workload on the plane, its first messages and its moves."""
        count = location.filters
        circles = Circles.of(location.subscriptions(0, count, content="tags").select(["area"]))
        sent = location.messages(0, messages, content="tags")["location"].combine_chunks()
        moves = location.moves(0, _PASSES * count)["location"].combine_chunks()
        x, y = (sent.field(name).to_numpy() for name in ("x", "y"))
        order = np.random.default_rng(seed).permutation(count).astype(np.uint32)
        to = (moves.field(name).to_numpy() for name in ("x", "y"))
        return cls(name, circles, x, y, np.tile(order, _PASSES), *to)

    @property
    def sample(self) -> int:
        """How many points brute force answers."""
        return min(max(int(_COMPARED / max(len(self.circles), 1)), _FEWEST), _MOST, len(self.x))

    @cached_property
    def right(self) -> Found:
        """Right answers to the first points."""
        return circles_with(self.circles, self.x[: self.sample], self.y[: self.sample])


def circles_with(circles: Circles, x: F64Array, y: F64Array) -> Found:
    """The circles that have each point, by brute force."""
    squares = circles.radius**2
    ids = [
        np.flatnonzero((px - circles.x) ** 2 + (py - circles.y) ** 2 <= squares) for px, py in zip(x, y, strict=True)
    ]
    lengths = np.array([len(each) for each in ids], np.int64)
    return Found(offsets_of(lengths), np.concatenate([np.zeros(0, np.uint32), *ids]).astype(np.uint32))


def asking(system: Any, scenario: CircleScenario) -> Callable[[int], Any]:
    """A call that asks a system for the first points in its own form; the dual, if it has nothing else."""
    x, y = scenario.x, scenario.y
    if hasattr(system, "match_many"):
        table = system.prepare(x, y)
        return lambda count: system.match_many(table[:count])
    if hasattr(system, "stab"):
        return lambda count: system.stab(x[:count], y[:count])
    # All circles have one radius: a point has those whose centres are so near
    reach = np.full(len(x), scenario.circles.radius.max(initial=0.0))
    return lambda count: system.within(x[:count], y[:count], reach[:count])


class Moving:
    """Moves of a system: each call moves the next circles; knows where the circles are."""

    def __init__(self, system: Any, scenario: CircleScenario) -> None:
        self._system, self._scenario = system, scenario
        self._at = 0
        self._done: list[slice] = []

    def __call__(self, count: int) -> None:
        """Move `count` circles."""
        scenario = self._scenario
        if self._at + count > len(scenario.ids):
            self._at = 0
        moved = slice(self._at, self._at + count)
        self._at += count
        self._done.append(moved)
        self._system.move(scenario.ids[moved], scenario.to_x[moved], scenario.to_y[moved])

    def circles(self) -> Circles:
        """Where they are now."""
        scenario, circles = self._scenario, self._scenario.circles
        moved = circles.movable()
        for some in self._done:
            moved.move(scenario.ids[some], scenario.to_x[some], scenario.to_y[some])
        return moved


def time_messages(
    bench: Bench, result: Result, scenario: CircleScenario, systems: Mapping[str, Any]
) -> dict[str, Samples]:
    """Microseconds a message of each system, in turn; all answers that were timed are compared."""
    works = {name: asking(system, scenario) for name, system in systems.items()}
    if not works:
        return {}
    found_each = max(len(scenario.right.ids) / max(scenario.sample, 1), 1.0)
    most = CallSize(most=max(scenario.sample, int(MOST_FOUND / found_each)))
    sizes = dict.fromkeys(works, most)
    found = bench.rates(f"{result.name}: matching, {scenario.name}", works, len(scenario.x), sizes)
    with bench.doing(f"{result.name}: checking, {scenario.name}"):
        _compare_all(result, scenario, works, {name: samples.items for name, samples in found.items()})
    return {name: each.per(1e6) for name, each in found.items()}


def _compare_all(
    result: Result, scenario: CircleScenario, works: Mapping[str, Callable[[int], Any]], timed: Mapping[str, int]
) -> None:
    reference = next((name for name in _REFERENCES if name in works), None)
    others = None if reference is None else found_in(works[reference](max(timed.values())))
    for name, work in works.items():
        given = found_in(work(max(min(scenario.sample, len(scenario.x)), timed[name])))
        compare = partial(_compare, result, scenario, scenario.circles, name, given)
        compare(f"{scenario.name}, against brute force", scenario.right)
        if others is not None and name != reference:
            compare(f"{scenario.name}, against {reference}", others)


def time_moves(
    bench: Bench, result: Result, scenario: CircleScenario, systems: Mapping[str, Any]
) -> dict[str, Samples]:
    """Microseconds a move of each system whose circles move; what each answers after that is compared."""
    movers = {name: Moving(system, scenario) for name, system in systems.items() if hasattr(system, "move")}
    if not movers:
        return {}
    most = min(len(scenario.circles), _MOST_MOVES)
    found = bench.rates(f"{result.name}: moving, {scenario.name}", movers, most)
    asked = max(int(_AFTER_MOVES * scenario.sample), min(_FEWEST, len(scenario.x)))
    with bench.doing(f"{result.name}: checking, {scenario.name}, moved"):
        for name, mover in movers.items():
            circles = mover.circles()
            right = circles_with(circles, scenario.x[:asked], scenario.y[:asked])
            given = found_in(asking(systems[name], scenario)(asked))
            _compare(result, scenario, circles, name, given, f"{scenario.name}, moved, against brute force", right)
    return {name: each.per(1e6) for name, each in found.items()}


def found_in(answers: Any) -> Found:
    """A system's answers, in any form."""
    found: Found = Found.of(answers) if isinstance(answers, pa.Array) else answers
    return found


def _compare(
    result: Result, scenario: CircleScenario, circles: Circles, name: str, given: Found, where: str, right: Found
) -> None:
    """Add how answers compare with the right ones, for as many points as both have."""
    count = min(len(given.offsets), len(right.offsets)) - 1
    have, due = (
        Lists(each.offsets[: count + 1], each.ids[: each.offsets[count]].astype(np.uint64)) for each in (given, right)
    )

    def on_edge(point: int, number: int) -> bool:
        """Whether a point is so near the edge of a circle that single precision may say either."""
        if number >= len(circles):
            return False
        away = (scenario.x[point] - circles.x[number]) ** 2 + (scenario.y[point] - circles.y[number]) ** 2
        square = circles.radius[number] ** 2
        return bool(abs(away - square) <= _SINGLE_ROUNDS * square)

    result.compare(where, name, have, due, may_differ=on_edge if name in _SINGLE else None)
