"""`tagmatch-bench location`: areas, positions and clients that move, some while others match; and exact answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tagmatch import TagMatch
from tagmatch.model.arrays import BoolArray, F64Array, Lists, U64Array
from tagmatch.model.kernels.sphere import CIRCLE
from tagmatch.pipeline.areas.chunks import Places, Shapes
from tagmatch.pipeline.areas.clients import ClientCells
from tagmatch.pipeline.areas.fixed import FixedAreas
from tagmatch_bench.figures import published
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.figures.improvement import CLCB_COUNTERS
from tagmatch_bench.figures.location_content import cities, clients, content, located, table2, workload
from tagmatch_bench.figures.location_spatial import memory, messages, moves, parts, spatial
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import add_answers
from tagmatch_bench.harness.located import LocatedScenario, great_circle
from tagmatch_bench.harness.results import Answers, Result, Target
from tagmatch_bench.harness.timing import Samples, without_garbage_collection
from tagmatch_bench.systems.tagmatch_content import TagmatchContent
from tagmatch_bench.workloads.location import EARTH_METRES


@dataclass(frozen=True, slots=True)
class LocationSizes:
    """Sizes, and the parts to run; see the command's help."""

    filters: tuple[int, ...] = (100_000, 1_000_000)
    located: tuple[int, ...] = (250_000, 2_500_000)
    figures: int = 2_500_000
    coverages: tuple[float, ...] = published.COVERAGES
    live: int = 2_500_000
    pairs: int = 10_000_000
    alerts: int = 100_000
    cities: Path | None = None
    parts: tuple[str, ...] = PARTS["location"]


def location(bench: Bench, sizes: LocationSizes) -> Result:
    """Measure all parts that are wanted."""
    result = bench.result(
        "location",
        "Areas and positions",
        """All run on the CPU and on one thread, except *CLCB* and the rows named *GPU*, which run on a CUDA device.
        Systems take turns, in calls with as many messages, or moves, as take about as long; all are asked for many
        at once, and those that Python asks for each message, or that a call is made for each, say so: *a call each*,
        *H3 cells in a dict*, and R\\*-tree's and Redis's moves. *tagmatch, areas* and *tagmatch, clients* are the
        two structures, of areas that stay and of clients that move, which get positions in arrays, as libraries do;
        *kernel only* is without copies to a device and back. *End to end* is `match_many` on an Arrow table with a
        column `location`, to Arrow keys, and `move` with NumPy arrays. *Contents and areas* begins with messages
        whose attributes are codes and whose tags are ranks, as CLCB's are; it has a packet of messages go through
        each step together, where CLCB has one message after the other, in one kernel: CLCB's latency is the inverse
        of its throughput, and what one message takes here is in *a call each*, with Python's part of it. CLCB:
        Cugola, Margara, Middleware 2012; *paper* are the numbers that it prints, of 2012: six cores of an AMD Phenom
        II and an Nvidia GTX 460. Its R-Tree, libspatialindex's, finds areas only, here as there.""",
        **asdict(sizes),
    )
    works = {
        "spatial": partial(spatial, bench, result, sizes.filters),
        "content": partial(content, bench, result, sizes.located),
        "table2": partial(table2, bench, result, sizes.figures),
        "figure3": partial(messages, bench, result, 3, sizes.figures, sizes.coverages),
        "figure4": partial(messages, bench, result, 4, sizes.figures, sizes.coverages),
        "figure5": partial(moves, bench, result, sizes.figures),
        "figure6": partial(parts, bench, result, sizes.figures),
        "figure7": partial(memory, bench, result, sizes.figures),
        "improvements": partial(_improved, bench, result, sizes.figures),
        "live": partial(live, bench, result, sizes.live),
        "exact": partial(exact, bench, result, sizes.pairs),
        "cities": partial(cities, bench, result, sizes.alerts, sizes.cities),
    }
    bench.do(works, sizes.parts)
    return result


def _improved(bench: Bench, result: Result, filters: int) -> None:
    """Measure CLCB's improvement in its default scenario."""
    with bench.doing(f"location: generating {filters:,} filters"):
        scenario = located("CLCB's improvement", filters, bench.options.queries, bench.options.seed)
    CLCB_COUNTERS.measure(bench, result, scenario, scenario.for_others[0])


#: Different contents of all filters
CONTENTS = 2_000
#: Moves and messages of a call, and how many calls have others
_MOVES, _MESSAGES, _CALLS = 100_000, 8_192, 8
#: How many times as long as other measured calls
_LONGER = 10
_MOVES_A_SECOND, _MESSAGES_A_SECOND = Target(1.5e6), Target(0.4e6)
#: Filters from which on targets hold
_LARGE = 2_500_000
MOVES, MESSAGES = "moves", "messages"
ALONE, TOGETHER = "alone", "together"


class _Moves(NamedTuple):
    """Moves of a call."""

    keys: U64Array
    x: F64Array
    y: F64Array


def live(bench: Bench, result: Result, filters: int) -> None:
    """Measure moves and messages a second, each alone and both at once."""
    options = bench.options
    with bench.doing(f"location: generating {filters:,} clients"):
        made = workload(filters, options.seed, filters_each=1)
        stored = _few_contents(made.subscriptions(0, made.filters, threads=1).combine_chunks())
        sent = made.messages(0, _CALLS * _MESSAGES).combine_chunks()
        x, y = (stored["area"].combine_chunks().field(name).to_numpy().copy() for name in ("x", "y"))
        moves = _moves(filters, options.seed)
    with bench.doing(f"location: building tagmatch, {filters:,} clients"):
        whole = TagmatchContent(clients(stored), plane=True)
        whole.index.move(stored["key"].to_numpy(), x, y)
    calls = [sent[first : first + _MESSAGES] for first in range(0, len(sent), _MESSAGES)]
    try:
        _compare(result, "before moves", stored, sent, whole, x, y)
        works = {
            MOVES: lambda number: _move(whole, moves[number % len(moves)]),
            MESSAGES: lambda number: len(whole.match_many(calls[number % len(calls)])),
        }
        with bench.doing(f"location: moving and matching, {filters:,} clients"):
            found, done = _measure(works, options.rounds, _LONGER * options.seconds)
        for number in range(done[MOVES]):
            some = moves[number % len(moves)]
            x[some.keys.astype(np.int64)], y[some.keys.astype(np.int64)] = some.x, some.y
        _compare(result, "after moves", stored, sent, whole, x, y)
    finally:
        whole.close()
    panel = result.panel("moves and messages at once", "", "a second")
    for (what, how), samples in found.items():
        panel.add(what, how, samples)
    large = filters >= _LARGE
    for what, target in ((MOVES, _MOVES_A_SECOND), (MESSAGES, _MESSAGES_A_SECOND)):
        together = found[what, TOGETHER]
        result.add(f"live, {filters:,} clients: {what} together", together, "a second", target if large else None)
        result.add(f"live, {filters:,} clients: {what} alone", found[what, ALONE], "a second")
        result.add(
            f"live, {filters:,} clients: {what}, together against alone", together.over(found[what, ALONE]), "times"
        )


def _few_contents(stored: pa.Table) -> pa.Table:
    """The same areas with the contents of the first subscriptions only; a client for each."""
    which = pa.array(np.arange(len(stored)) % min(CONTENTS, len(stored)))
    contents = stored["constraints"].combine_chunks().take(which)
    return stored.set_column(stored.column_names.index("constraints"), "constraints", contents)


def _move(whole: TagmatchContent, some: _Moves) -> int:
    whole.index.move(*some)
    return len(some.keys)


def _moves(filters: int, seed: int) -> list[_Moves]:
    """Calls of random clients that go anywhere."""
    random = np.random.default_rng(seed)
    count = min(_MOVES, filters)
    return [
        _Moves(random.permutation(filters)[:count].astype(np.uint64), random.random(count), random.random(count))
        for _ in range(_CALLS)
    ]


def _measure(
    works: dict[str, Callable[[int], int]], rounds: int, seconds: float
) -> tuple[dict[tuple[str, str], Samples], dict[str, int]]:
    """Things a second of each work, alone and together, round by round; and how many calls of each there were."""
    done = dict.fromkeys(works, 0)
    taken: dict[tuple[str, str], list[float]] = {(name, how): [] for name in works for how in (ALONE, TOGETHER)}
    for name, work in works.items():  # warm up
        work(done[name])
        done[name] += 1
    with without_garbage_collection():
        for _ in range(rounds):
            for name in works:
                for each, rate in _run({name: works[name]}, done, seconds).items():
                    taken[each, ALONE].append(rate)
            for each, rate in _run(works, done, seconds).items():
                taken[each, TOGETHER].append(rate)
    return {key: Samples(tuple(values)) for key, values in taken.items()}, done


def _run(works: dict[str, Callable[[int], int]], done: dict[str, int], seconds: float) -> dict[str, float]:
    """Call each work in its own thread until time is over; returns things a second while all of them worked."""
    begin = threading.Barrier(len(works))

    def call(name: str) -> float:
        begin.wait()
        start, count = time.perf_counter(), 0
        while (now := time.perf_counter()) - start < seconds:
            count += works[name](done[name])
            done[name] += 1
        return count / (max(now, time.perf_counter()) - start)

    with ThreadPoolExecutor(len(works)) as pool:
        return dict(zip(works, pool.map(call, works), strict=True))


def _compare(
    result: Result, when: str, stored: pa.Table, sent: pa.Table, whole: TagmatchContent, x: Any, y: Any
) -> None:
    """Compare answers with brute force for the clients' current positions."""
    radius = stored["area"].combine_chunks().field("radius")
    area = pa.StructArray.from_arrays([pa.array(x), pa.array(y), radius], ["x", "y", "radius"])
    there = stored.set_column(stored.column_names.index("area"), "area", area)
    scenario = LocatedScenario(f"live, {when}", there, sent)
    given = whole.match_many(sent[: scenario.sample], unique=True)
    add_answers(result, scenario, "tagmatch", whole, "against brute force", given, scenario.right)


_NONE_WRONG = Target(0, at_most=True, required=True)
#: Pairs this near to the border are left out: metres, or a share of the radius; the greater one counts
_METRES, _SHARE = 1e-6, 1e-9
#: Radii: from a metre to all the globe
_LEAST, _MOST = 1.0, np.pi * EARTH_METRES
#: Pairs of a batch, each in its own group
_BATCH = 100_000
#: Of an index, areas for each place
_AREAS = 2_000


class Pairs(NamedTuple):
    """Circles on the sphere and a place for each, in degrees and metres."""

    lon: F64Array
    lat: F64Array
    metres: F64Array
    at_lon: F64Array
    at_lat: F64Array

    def has(self) -> tuple[BoolArray, BoolArray]:
        """Which circles have their place, and which pairs are so near the border that they do not count."""
        away = great_circle(self.lon, self.lat, self.at_lon, self.at_lat)
        off = np.abs(away - self.metres)
        return away <= self.metres, off <= np.maximum(_METRES, _SHARE * self.metres)


def pairs(count: int, random: np.random.Generator) -> Pairs:
    """Draw circles of all sizes, a third at a pole or the anti-meridian, and places mostly near the border."""
    lon, lat = _anywhere(count, random)
    special = random.integers(0, 9, count)
    edge = 10 ** random.uniform(-9, 0, count)
    lon = np.where(special == 0, 180 - edge, np.where(special == 1, edge - 180, lon))
    lat = np.where(special == 2, 90 - edge, np.where(special == 3, edge - 90, lat))
    exact = random.random(count) < 0.1
    lon = np.where(exact & (special == 0), 180.0, np.where(exact & (special == 1), -180.0, lon))
    lat = np.where(exact & (special == 2), 90.0, np.where(exact & (special == 3), -90.0, lat))
    metres = np.exp(random.uniform(np.log(_LEAST), np.log(_MOST), count))
    more_than_half = random.random(count) < 0.1
    metres = np.where(more_than_half, random.uniform(0.5 * _MOST, 1.01 * _MOST, count), metres)
    sign = np.where(random.random(count) < 0.5, -1.0, 1.0)
    away = np.clip(metres * (1 + sign * 10 ** random.uniform(-6, 0, count)), 0.0, _MOST)
    at_lon, at_lat = _from(lon, lat, away, random.uniform(0, 2 * np.pi, count))
    other_lon, other_lat = _anywhere(count, random)
    anywhere = random.random(count) < 0.1
    at_lon, at_lat = np.where(anywhere, other_lon, at_lon), np.where(anywhere, other_lat, at_lat)
    # Half of the places on the anti-meridian have its other name
    renamed = (np.abs(at_lon) == 180) & (random.random(count) < 0.5)
    return Pairs(lon, lat, metres, np.where(renamed, -at_lon, at_lon), at_lat)


def _anywhere(count: int, random: np.random.Generator) -> tuple[F64Array, F64Array]:
    return random.uniform(-180, 180, count), np.degrees(np.arcsin(random.uniform(-1, 1, count)))


def _from(lon: F64Array, lat: F64Array, metres: F64Array, bearing: F64Array) -> tuple[F64Array, F64Array]:
    """Places at the given distances in metres and directions from other places."""
    angle, a = metres / EARTH_METRES, np.radians(lat)
    sine = np.clip(np.sin(a) * np.cos(angle) + np.cos(a) * np.sin(angle) * np.cos(bearing), -1, 1)
    b = np.arcsin(sine)
    across = np.arctan2(np.sin(bearing) * np.sin(angle) * np.cos(a), np.cos(angle) - np.sin(a) * sine)
    return (lon + np.degrees(across) + 180) % 360 - 180, np.degrees(b)


def exact(bench: Bench, result: Result, count: int) -> None:
    """Compare as many pairs of an area and a position with great-circle distances, in each structure and an index."""
    ways: dict[str, Callable[[Pairs], BoolArray]] = {"tagmatch, areas": _fixed, "tagmatch, clients": _of_clients}
    for name, way in ways.items():
        with bench.doing(f"location: {count:,} areas and positions, {name}"):
            _add(result, name, count, _each_pair(bench, count, way))
    with bench.doing(f"location: {count:,} areas and positions, an index"):
        _add(result, "tagmatch, end to end", count, _of_index(bench, count))


#: Which pairs a system says to be in, which are, and which do not count
_Compared = tuple[Any, Any, Any]


def _add(result: Result, name: str, count: int, compared: Iterator[_Compared]) -> None:
    wrong = missing = near = inside = 0
    for given, right, on_border in compared:
        wrong += int(np.count_nonzero(given & ~right & ~on_border))
        missing += int(np.count_nonzero(~given & right & ~on_border))
        near += int(np.count_nonzero(on_border))
        inside += int(np.count_nonzero(given))
    what = f"{count:,} areas and positions"
    result.add(f"{what}, {name}: wrong answers", wrong + missing, "pairs", _NONE_WRONG)
    result.add(f"{what}, {name}: inside", inside, "pairs")
    result.add(f"{what}, {name}: on the border, left out", near, "pairs")
    result.answers.append(Answers(what, name, True, count, inside, wrong, missing))


def _each_pair(bench: Bench, count: int, way: Callable[[Pairs], BoolArray]) -> Iterator[_Compared]:
    random = np.random.default_rng(bench.options.seed)
    for first in range(0, count, _BATCH):
        some = pairs(min(_BATCH, count - first), random)
        yield (way(some), *some.has())


def _one_group_each(count: int) -> Lists:
    return Lists(np.arange(count + 1), np.arange(count, dtype=np.uint32))


def _fixed(some: Pairs) -> BoolArray:
    """By `FixedAreas`: a group for each pair."""
    count = len(some.lon)
    values = np.column_stack([some.lon, some.lat, some.metres, np.zeros(count)])
    shapes = Shapes(np.full(count, CIRCLE, np.uint8), values)
    areas = FixedAreas.of(np.arange(count), count, shapes, plane=False)
    return np.diff(areas.find(Places(some.at_lon, some.at_lat), _one_group_each(count)).offsets) > 0


def _of_clients(some: Pairs) -> BoolArray:
    """By `ClientCells`: a client for each pair, in its own group."""
    count = len(some.lon)
    each = np.arange(count)
    cells = ClientCells(each, count, each, some.metres, (some.lon, some.lat), plane=False)
    return np.diff(cells.find(Places(some.at_lon, some.at_lat), _one_group_each(count)).offsets) > 0


def _of_index(bench: Bench, count: int) -> Iterator[_Compared]:
    """By an index of some areas, each paired with each of many places."""
    random = np.random.default_rng(bench.options.seed + 1)
    areas = min(_AREAS, count)
    places = -(-count // areas)
    stored, asked = pairs(areas, random), pairs(places, random)
    columns = [pa.array(column) for column in (stored.lon, stored.lat, stored.metres)]
    area = pa.StructArray.from_arrays(columns, ["lon", "lat", "metres"])
    # Half of the places are those of the areas' own pairs, near their borders
    own = np.arange(places) % 2 == 0
    which = np.arange(places) % areas
    lon, lat = (
        np.where(own, of[which], others)
        for of, others in ((stored.at_lon, asked.at_lon), (stored.at_lat, asked.at_lat))
    )
    with ExitStack() as stack:
        index: TagMatch = stack.enter_context(TagMatch(threads=1, device="cpu"))
        index.add_subscriptions(pa.table({"key": np.arange(areas, dtype=np.uint64), "area": area}))
        index.consolidate()
        location = pa.StructArray.from_arrays([pa.array(lon), pa.array(lat)], ["lon", "lat"])
        found = index.match_many(pa.table({"location": location}))
    offsets, keys, left = found.offsets.to_numpy(), found.values.to_numpy(), count
    for place in range(places):
        some = min(areas, left)
        left -= some
        given = np.bincount(keys[offsets[place] : offsets[place + 1]].astype(np.int64), minlength=areas)[:some] > 0
        at = (np.full(areas, lon[place]), np.full(areas, lat[place]))
        right, near = stored._replace(at_lon=at[0], at_lat=at[1]).has()
        yield given, right[:some], near[:some]
