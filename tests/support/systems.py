"""Workloads for the systems that are compared, with constraints, circles or both, and what holds them to brute force.

Distances are those of the plane, in double precision, or great circles of the sphere; a circle's edge belongs to it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st
from oracle import Test, evaluate
from support.distances import EARTH
from support.strategies import BOUNDARY_KEYS

from tagmatch_bench.systems.catalogue import ENCODED, System
from tagmatch_bench.systems.circles import Circles, CircleSystem, Found

# -- brute force -------------------------------------------------------------------------------------------------------

Floats = npt.NDArray[np.float64]


def holds(constraint: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a constraint, as in column `constraints` of subscriptions, holds for the message's attribute."""
    operands = [constraint[field] for field in ("text", "value", "upper") if constraint.get(field) is not None]
    return evaluate(Test(constraint["attr"], constraint["op"], tuple(operands[:2])), (), message)


def matching_keys(subscriptions: Iterable[Mapping[str, Any]], messages: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Keys of the filters that match each message, once for each filter, ascending."""
    stored: Sequence[Mapping[str, Any]] = list(subscriptions)
    return [
        sorted(row["key"] for row in stored if all(holds(constraint, message) for constraint in row["constraints"]))
        for message in messages
    ]


def inside(circles: tuple[Floats, Floats, Floats], x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    """Which of the circles `x`, `y`, `radius` have each point: a row for each point."""
    of_x, of_y, radius = circles
    across, up = x[:, None] - of_x, y[:, None] - of_y
    within: npt.NDArray[np.bool_] = across * across + up * up <= radius * radius
    return within


def metres(lon: Any, lat: Any, other_lon: Any, other_lat: Any) -> Any:
    """Great-circle distances by the haversine formula."""
    a, b = np.radians(lat), np.radians(other_lat)
    up, across = np.sin((b - a) / 2), np.sin(np.radians(np.asarray(other_lon) - lon) / 2)
    return 2 * EARTH * np.arcsin(np.minimum(1.0, np.sqrt(up**2 + np.cos(a) * np.cos(b) * across**2)))


def has(area: Mapping[str, float], location: Mapping[str, float]) -> bool:
    """Whether an area has a position: `x`, `y` and `radius`, or `lon`, `lat` and `metres`."""
    if "metres" in area:
        return bool(metres(area["lon"], area["lat"], location["lon"], location["lat"]) <= area["metres"])
    across, up = location["x"] - area["x"], location["y"] - area["y"]
    return across * across + up * up <= area["radius"] * area["radius"]


def matching_rows(subscriptions: Iterable[Mapping[str, Any]], messages: Iterable[Mapping[str, Any]]) -> list[list[int]]:
    """Places of the subscriptions whose tags, constraints and area each message satisfies, ascending.

    Messages have `location`, `tags` where subscriptions have any, and attributes by name.
    """
    stored = list(enumerate(subscriptions))

    def matches(row: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
        has_tags = set(row.get("tags") or ()) <= set(message.get("tags") or ())
        conditions = (holds(constraint, message) for constraint in row.get("constraints") or ())
        return has_tags and all(conditions) and has(row["area"], message["location"])

    return [[place for place, row in stored if matches(row, message)] for message in messages]


# -- constraints on attributes -----------------------------------------------------------------------------------------

NAMES = ("x", "y", "z", "price", "a b", "")
OTHER_NAMES = (*NAMES, "unknown", *(f"n{i}" for i in range(40)))
WHOLE = st.integers(-3, 3) | st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63)])
REAL = st.sampled_from([-1.5, -0.0, 0.0, 0.5, 1.0, 1e300, float("inf"), float("-inf"), 5e-324])
Row = dict[str, Any]


def constraints(values: st.SearchStrategy[Any], names: tuple[str, ...]) -> st.SearchStrategy[Row]:
    name, comparison = st.sampled_from(names), st.sampled_from(["=", "!=", "<", ">"])
    one = st.fixed_dictionaries({"attr": name, "op": comparison, "value": values, "upper": st.none()})
    ends = st.tuples(values, values).map(sorted)
    return one | st.builds(
        lambda name, ends: {"attr": name, "op": "between", "value": ends[0], "upper": ends[1]}, name, ends
    )


def filters_of(each: st.SearchStrategy[Row]) -> st.SearchStrategy[Row]:
    keys = st.integers(0, 3) | st.sampled_from(BOUNDARY_KEYS)
    return st.fixed_dictionaries({"key": keys, "constraints": st.lists(each, max_size=4)})


def _columns(messages: list[Row], kinds: dict[str, pa.DataType]) -> pa.Table:
    return pa.table({name: pa.array([row.get(name) for row in messages], kind) for name, kind in kinds.items()})


def subscriptions(filters: list[Row], kind: pa.DataType, **more: pa.DataType) -> pa.Table:
    """A table of filters; operands that one does not have are null."""
    operands = {"value": kind, "upper": kind, **(more or {"text": pa.string()})}
    struct = pa.struct({"attr": pa.string(), "op": pa.string(), **operands})
    return pa.Table.from_pylist(filters, pa.schema({"key": pa.uint64(), "constraints": pa.list_(struct)}))


def tables(filters: list[Row], messages: list[Row], kind: pa.DataType) -> tuple[pa.Table, pa.Table]:
    return subscriptions(filters, kind, value=kind), _columns(messages, dict.fromkeys(OTHER_NAMES, kind))


Workloads = st.SearchStrategy[tuple[pa.Table, pa.Table]]


def _workloads(kind: pa.DataType, values: st.SearchStrategy[Any], names: tuple[str, ...] = NAMES) -> Workloads:
    """Few names and values, so that filters match; constraints repeat, in a filter too, and a filter may have none."""
    filters = st.lists(filters_of(constraints(values, names)), max_size=25)
    messages = st.lists(st.dictionaries(st.sampled_from(OTHER_NAMES), values, max_size=20), max_size=6)
    return st.builds(tables, filters, messages, st.just(kind))


def _text_workloads() -> Workloads:
    """Texts in some columns, and whole numbers in one, `x`."""
    # Of few characters, so that parts recur; as long as can be compared, of 1 to 4 bytes a character, and empty
    text = (
        st.text("ab", max_size=7) | st.text("aé", max_size=3) | st.sampled_from(["", "abababa", "日本", "😀a", "b😀"])
    )
    name, comparison = st.sampled_from(("t", "name")), st.sampled_from(["=", "!=", "prefix", "contains"])
    some = st.fixed_dictionaries({"attr": name, "op": comparison, "text": text}) | constraints(WHOLE, ("x",))
    of_messages = st.fixed_dictionaries({}, optional={"t": text, "name": text, "x": WHOLE, "unknown": text})
    kinds = {"x": pa.int64(), **dict.fromkeys(("t", "name", "unknown"), pa.string())}
    return st.tuples(
        st.lists(filters_of(some), max_size=25).map(lambda filters: subscriptions(filters, pa.int64())),
        st.lists(of_messages, max_size=6).map(lambda messages: _columns(messages, kinds)),
    )


#: Subscriptions and messages of each kind of attributes
KINDS: dict[str, Workloads] = {
    "whole": _workloads(pa.int64(), WHOLE) | _workloads(pa.int64(), st.integers(-3, 3), OTHER_NAMES),
    "real": _workloads(pa.float64(), REAL),
    "texts": _text_workloads(),
}


def check(system: System, subscriptions: pa.Table, messages: pa.Table, threads: int = 1) -> int:
    """Compare all answers with brute force; returns how many there are."""
    right = matching_keys(subscriptions.to_pylist(), messages.to_pylist())
    ours = system in ENCODED.values()
    if ours:
        subscriptions, messages = _as_ours_take_them(subscriptions, messages)
    with closing(system(subscriptions, threads)) as matcher:
        assert matcher.nbytes() > 0
        return compare(matcher, matcher.prepare(messages), right, ours=ours)


def compare(matcher: Any, prepared: Any, right: list[list[int]], *, ours: bool = False) -> int:
    """Compare answers to some messages and to all; our systems store filters that are equal, with one key, once."""
    assert len(prepared) == len(right)
    for first, last in ((0, len(right)), (1, len(right)), (0, 1), (2, 2)):
        due, some = right[first:last], prepared[first:last]
        once, given = [sorted(set(keys)) for keys in due], matcher.match_many(some).to_pylist()
        assert [sorted(set(keys)) if ours else sorted(keys) for keys in given] == (once if ours else due)
        assert all(len(keys) <= len(most) for keys, most in zip(given, due, strict=True))
        assert list(map(sorted, matcher.match_many(some, unique=True).to_pylist())) == once
    return sum(map(len, right))


def _as_ours_take_them(subscriptions: pa.Table, messages: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The same, where every attribute has a name, and no constraint an operand without meaning."""
    rows = subscriptions.to_pylist()
    for row in rows:
        for constraint in row["constraints"]:
            constraint["attr"] = constraint["attr"] or "no name"
            if constraint["op"] != "between":
                constraint["upper"] = None
    stored = pa.Table.from_pylist(rows, subscriptions.schema)
    return stored, messages.rename_columns([name or "no name" for name in messages.schema.names])


# -- circles, points and moves -----------------------------------------------------------------------------------------

Build = Callable[[Circles], CircleSystem]

_FINE = 1024
#: Eighths make points that are on edges, as 3, 4 and 5 of them are sides of a triangle; single precision has all
PLACES = st.integers(0, 8).map(lambda n: n / 8) | st.integers(0, _FINE).map(lambda n: n / _FINE)
RADII = st.integers(0, 12).map(lambda n: n / 8) | st.integers(0, _FINE).map(lambda n: n / _FINE)
#: Of double precision, also a little more or less; not so small that its square is 0
ALL_PLACES = PLACES | st.floats(2.0**-30, 1)
ALL_RADII = (
    RADII | RADII.map(lambda x: math.nextafter(x, 9) if x else x) | RADII.map(lambda x: max(0.0, math.nextafter(x, -9)))
)


class Case(NamedTuple):
    """Circles, points with a radius each for the dual, and moves, each of some circles."""

    circles: Circles
    points: tuple[Floats, Floats, Floats]
    moves: list[tuple[npt.NDArray[np.uint32], Floats, Floats]]


@st.composite
def cases(draw: st.DrawFn, places: Any = ALL_PLACES, radii: Any = ALL_RADII) -> Case:
    rows = draw(st.lists(st.tuples(places, places, radii), max_size=12))
    asked = draw(st.lists(st.tuples(places, places, radii), max_size=6))
    moves = []
    for _ in range(draw(st.integers(0, 2))):
        ids = draw(st.lists(st.sampled_from(range(len(rows))), unique=True)) if rows else []
        to = draw(st.lists(st.tuples(places, places), min_size=len(ids), max_size=len(ids)))
        moves.append((np.array(ids, np.uint32), *_floats(to, 2)))
    return Case(Circles(*_floats(rows, 3)), (*_floats(asked, 3),), moves)  # type: ignore[arg-type]


def random_case(seed: int, circles: int, points: int) -> Case:
    """Many small circles of different sizes, gathered a little, larger ones of points; exact in single precision."""
    rng = np.random.default_rng(seed)

    def some(count: int, most: float = 1.0) -> Floats:
        drawn: Floats = np.floor(rng.random(count) ** 2 * most * _FINE) / _FINE
        return drawn

    ids = rng.permutation(circles).astype(np.uint32)
    moves = [(part, some(len(part)), some(len(part))) for part in np.array_split(ids, 3)[:2]]
    stored = Circles(some(circles), some(circles), some(circles, 0.05))
    return Case(stored, (some(points), some(points), some(points, 0.2)), moves)


def one_radius(case: Case) -> Case:
    """The same with circles of one radius."""
    radius = case.circles.radius
    same = np.full(len(radius), radius[:1].sum() if len(radius) else 0.0)
    return case._replace(circles=Circles(case.circles.x, case.circles.y, same))


def check_circles(build: Build, case: Case) -> int:
    """Compare all answers with brute force, before moves and after each; returns how many there are."""
    x, y, radius = (column.copy() for column in (case.circles.x, case.circles.y, case.circles.radius))
    (px, py, reach), found = case.points, 0
    with closing(build(Circles(x.copy(), y.copy(), radius))) as system:  # type: ignore[type-var]
        assert hasattr(system, "stab") or hasattr(system, "within")
        for move in [None, *(case.moves if hasattr(system, "move") else ())]:
            if move is not None:
                ids, *places = move
                system.move(ids, *places)  # type: ignore[union-attr]
                x[ids], y[ids] = places
            if hasattr(system, "stab"):
                found += _equal(system.stab(px, py), inside((x, y, radius), px, py))
            if hasattr(system, "within"):
                # A point has a centre in its circle if the centre's, as a point, has the point in it
                found += _equal(system.within(px, py, reach), inside((px, py, reach), x, y).T)
        assert system.nbytes() is None or isinstance(system.nbytes(), int)
    return found


def _equal(found: Found, right: npt.NDArray[np.bool_]) -> int:
    assert found.offsets.dtype == np.int64
    assert found.ids.dtype == np.uint32
    assert len(found.offsets) == len(right) + 1
    assert found.offsets[-1] == len(found.ids)
    for i, row in enumerate(right):
        assert sorted(found.ids[found.offsets[i] : found.offsets[i + 1]].tolist()) == np.flatnonzero(row).tolist()
    return len(found.ids)


def _floats(rows: list[Any], width: int) -> npt.NDArray[np.float64]:
    return np.array(rows, np.float64).reshape(-1, width).T.copy()


# -- constraints and areas ---------------------------------------------------------------------------------------------

_POINTS = st.fixed_dictionaries({"x": PLACES, "y": PLACES})
_AREAS = st.fixed_dictionaries({"x": PLACES, "y": PLACES, "radius": RADII})
AREA = pa.struct({"x": pa.float64(), "y": pa.float64(), "radius": pa.float64()})
POINT = pa.struct({"x": pa.float64(), "y": pa.float64()})


def on_a_grid(table: pa.Table, name: str, kind: pa.DataType) -> pa.Table:
    """Move places to a grid, where single precision has differences and their squares."""
    column = table[name].combine_chunks()
    parts = [pa.array(np.round(part.to_numpy() * _FINE) / _FINE) for part in column.flatten()]
    return table.set_column(table.column_names.index(name), name, pa.StructArray.from_arrays(parts, fields=list(kind)))


@st.composite
def located_workloads(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Subscriptions with constraints and an area, and messages with attributes and a position."""
    filters = draw(st.lists(filters_of(constraints(WHOLE, NAMES)), max_size=15))
    messages = draw(st.lists(st.dictionaries(st.sampled_from(OTHER_NAMES), WHOLE, max_size=8), max_size=6))
    stored, sent = tables(filters, messages, pa.int64())
    areas = draw(st.lists(_AREAS, min_size=len(filters), max_size=len(filters)))
    points = draw(st.lists(_POINTS, min_size=len(messages), max_size=len(messages)))
    return stored.append_column("area", pa.array(areas, AREA)), sent.append_column("location", pa.array(points, POINT))


def right_keys(subscriptions: pa.Table, messages: pa.Table) -> list[list[int]]:
    keys = subscriptions["key"].to_pylist()
    matched = matching_rows(subscriptions.to_pylist(), messages.to_pylist())
    return [sorted(keys[row] for row in rows) for rows in matched]


def check_located(system: System, subscriptions: pa.Table, messages: pa.Table, threads: int = 1) -> int:
    """Compare all answers with brute force, also after all areas have moved; returns how many there are."""
    with closing(system(subscriptions, threads)) as matcher:
        prepared = matcher.prepare(messages)
        found = compare(matcher, prepared, right_keys(subscriptions, messages))
        ids = np.arange(len(subscriptions) - 1, -1, -1, dtype=np.uint32)
        area = subscriptions["area"].combine_chunks()
        x, y = (area.field(name).to_numpy()[ids] for name in ("y", "x"))
        matcher.move(ids, x, y)
        columns = [pa.array(x[::-1]), pa.array(y[::-1]), area.field("radius")]
        place, moved = subscriptions.column_names.index("area"), pa.StructArray.from_arrays(columns, fields=list(AREA))
        found += compare(matcher, prepared, right_keys(subscriptions.set_column(place, "area", moved), messages))
        assert matcher.nbytes() >= 8 * len(subscriptions)
    return found
