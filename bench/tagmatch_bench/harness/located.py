"""Systems that match contents and areas: built from the same subscriptions, timed in turn, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import CudaOptions
from tagmatch.model.arrays import BoolArray, F64Array, U64Array
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import Measured, timed
from tagmatch_bench.harness.results import Result
from tagmatch_bench.systems.catalogue import LOCATED, LOCATED_GPU
from tagmatch_bench.systems.clcb import LocatedMatcher
from tagmatch_bench.systems.matcher import COMPARED
from tagmatch_bench.systems.tagmatch_content import LocatedMatching, LocatedOneByOne, TagmatchLocated
from tagmatch_bench.workloads.content import constraints_of, lists_of
from tagmatch_bench.workloads.location import EARTH_METRES

#: Our own: from Arrow to Arrow; with messages that are encoded, as CLCB's are; and called from Python for each message
WHOLE, MATCHING, CALLED = "tagmatch, end to end", "tagmatch, contents and areas", "tagmatch, a call each"
#: The same, where a CUDA device finds the areas
MATCHING_GPU = "tagmatch, contents and areas, GPU"
CLCB, CLCB_CPU = "CLCB", "CLCB, CPU"
#: All there are
ALL = (WHOLE, MATCHING, CALLED, *LOCATED, *LOCATED_GPU)

#: Pairs of an area and a message that brute force compares, about, areas that it then finds, and messages
_COMPARED, _FOUND, _FEWEST, _MOST = 1e9, 2e5, 5, 1000
#: Messages that Python has as objects, at most
_MOST_CALLS = 2000
#: Of systems with single precision, a squared radius' share by which a squared distance may be off
_SINGLE_ROUNDS = 1e-6


@dataclass(frozen=True)
class LocatedScenario:
    """Subscriptions with areas, and messages."""

    name: str
    subscriptions: pa.Table  # as `tagmatch_bench.workloads.location` makes them, on the plane or on the sphere
    messages: pa.Table
    # the same as CLCB takes them, where that is not so: with tags as constraints
    compared_subscriptions: pa.Table | None = None
    compared_messages: pa.Table | None = None

    reference = WHOLE, 1

    @property
    def for_others(self) -> tuple[pa.Table, pa.Table]:
        """What CLCB takes, and is asked."""
        if self.compared_subscriptions is None or self.compared_messages is None:
            names = [name for name in self.messages.column_names if name != "tags"]
            return self.subscriptions, self.messages.select(names)
        return self.compared_subscriptions, self.compared_messages

    @cached_property
    def _areas(self) -> tuple[F64Array, F64Array, F64Array]:
        area = self.subscriptions["area"].combine_chunks()
        x, y, reach = (column.to_numpy() for column in area.flatten())
        return x, y, reach

    @cached_property
    def _places(self) -> tuple[F64Array, F64Array]:
        x, y = (column.to_numpy() for column in self.messages["location"].combine_chunks().flatten())
        return x, y

    @cached_property
    def on_sphere(self) -> bool:
        """Whether places are degrees."""
        return "lon" in (field.name for field in self.messages.schema.field("location").type)

    def inside(self, message: int) -> BoolArray:
        """Which areas have a message."""
        (x, y, reach), (px, py) = self._areas, (places[message] for places in self._places)
        if self.on_sphere:
            found: BoolArray = great_circle(x, y, px, py) <= reach
        else:
            found = (px - x) ** 2 + (py - y) ** 2 <= reach**2
        return found

    @cached_property
    def right(self) -> list[U64Array]:
        """Right answers to the first messages, each key once."""
        keys = self.subscriptions["key"].to_numpy()
        rows = [np.flatnonzero(self.inside(0))] if len(self.messages) else []
        each = max(len(rows[0]) if rows else 0, 1)
        count = min(max(int(min(_COMPARED / max(len(keys), 1), _FOUND / each)), _FEWEST), _MOST, len(self.messages))
        rows += [np.flatnonzero(self.inside(message)) for message in range(1, count)]
        different, where = np.unique(np.concatenate([np.zeros(0, np.int64), *rows]), return_inverse=True)
        stored = self.subscriptions.select(["tags", "constraints"]).take(pa.array(different)).to_pylist()
        sent, right, at = self.messages[:count].to_pylist(), [], 0
        for message, some in zip(sent, rows, strict=True):
            of = where[at : at + len(some)]
            at += len(some)
            right.append(np.unique(keys[some[[_has_content(stored[row], message) for row in of]]]))
        return right

    @property
    def sample(self) -> int:
        """How many messages brute force answers."""
        return len(self.right)

    def asked_of(self, system: Any) -> pa.Table:
        """The messages as a system takes them; of those that are asked from Python, not many."""
        if isinstance(system, LocatedOneByOne):
            return self.messages[:_MOST_CALLS]
        return self.for_others[1] if isinstance(system, LocatedMatcher) else self.messages

    def edges_of(self, system: Any) -> Callable[[int, int], bool] | None:
        """Of a system of single precision: whether it may have a message's key or not."""
        return self._on_edge if isinstance(system, LocatedMatcher) else None

    def _on_edge(self, message: int, key: int) -> bool:
        """Whether a message is so near the edge of an area of a key that single precision may say either."""
        rows = np.flatnonzero(self.subscriptions["key"].to_numpy() == key)
        (x, y, reach), (px, py) = (each[rows] for each in self._areas), (places[message] for places in self._places)
        square = reach**2
        return bool((np.abs((px - x) ** 2 + (py - y) ** 2 - square) <= _SINGLE_ROUNDS * square).any())


def great_circle(lon: Any, lat: Any, other_lon: Any, other_lat: Any) -> Any:
    """Metres between places, by the arc tangent of sine and cosine, which is exact at all distances; in degrees."""
    a, b = np.radians(lat), np.radians(other_lat)
    across = np.radians(np.asarray(other_lon) - lon)
    one = np.cos(b) * np.sin(across)
    other = np.cos(a) * np.sin(b) - np.sin(a) * np.cos(b) * np.cos(across)
    return EARTH_METRES * np.arctan2(
        np.hypot(one, other), np.sin(a) * np.sin(b) + np.cos(a) * np.cos(b) * np.cos(across)
    )


def _has_content(stored: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a message has the tags of a subscription, and satisfies its constraints."""
    if not set(stored["tags"]) <= set(message["tags"]):
        return False
    given = [(message.get(each["attr"]), each) for each in stored["constraints"]]
    return all(value is not None and COMPARED[each["op"]](value, each["value"]) for value, each in given)


def others_built(scenario: LocatedScenario) -> dict[str, Callable[[], Any]]:
    """How to build the other systems that match contents and areas."""
    others = {**LOCATED, **LOCATED_GPU}
    return {name: partial(system, scenario.for_others[0], 1) for name, system in others.items()}


def measure(
    bench: Bench, result: Result, scenario: LocatedScenario, whole: TagmatchLocated, names: Iterable[str] = ALL
) -> Measured:
    """Time systems on one thread, each key of an answer once, and compare all answers."""
    own: dict[str, Any] = {WHOLE: whole, MATCHING: LocatedMatching(whole), CALLED: LocatedOneByOne(whole)}
    others, names = others_built(scenario), list(names)
    result.unavailable |= {name: "skipped" for name in names if name in own and name in bench.options.skip}
    with ExitStack() as stack:
        builds = {name: others.get(name, partial(_on_a_gpu, whole)) for name in names if name not in own}
        systems = {name: own[name] for name in bench.wanted(names) if name in own}
        return timed(bench, result, scenario, systems | bench.build(result, builds, stack, scenario.name))


class _OnAGpu(LocatedMatching):
    """The same index on a CUDA device, which has packets of any size, closed in the end."""

    def close(self) -> None:
        """Close the index."""
        self._whole.close()


def _on_a_gpu(whole: TagmatchLocated) -> LocatedMatching:
    options = CudaOptions(devices=(0,), fewest_queries=0)
    return _OnAGpu(whole.again(device="cuda", threads=1, plane=whole.plane, cuda=options))


# -- areas and tags as constraints on attributes, positions and tags as attributes, for systems that know nothing else -

# CLCB's §5 does not say what its "special constraint" of an area is. Here it is two intervals, of the least square
# around the circle: a square has 27 % more area, so that these filters find all that the circles find, and more.

#: Names that the workload has for no other attribute
X, Y = "x", "y"
_CONSTRAINT = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.float64(), "upper": pa.float64()})


def areas_as_constraints(subscriptions: pa.Table) -> pa.Table:
    """Return `key` and `constraints` of subscriptions on the plane, with two more for the area."""
    rows = len(subscriptions)
    lists = subscriptions["constraints"].combine_chunks()
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    flat = lists.flatten()
    area = subscriptions["area"].combine_chunks()
    x, y, radius = (area.field(name).to_numpy() for name in ("x", "y", "radius"))
    names = pa.concat_arrays([flat.field("attr"), *(pa.repeat(pa.scalar(name), rows) for name in (X, Y))])
    operators = pa.concat_arrays([flat.field("op"), pa.repeat(pa.scalar("between"), 2 * rows)])
    values = np.concatenate([flat.field("value").cast(pa.float64()).to_numpy(), x - radius, y - radius])
    uppers = pa.concat_arrays([pa.nulls(len(flat), pa.float64()), pa.array(np.concatenate([x + radius, y + radius]))])
    joined = pa.StructArray.from_arrays([names, operators, pa.array(values), uppers], fields=list(_CONSTRAINT))
    each = np.arange(rows)
    order = np.argsort(np.concatenate([np.repeat(each, sizes), each, each]), kind="stable")
    return pa.table({"key": subscriptions["key"], "constraints": lists_of(sizes + 2, joined.take(pa.array(order)))})


def positions_as_attributes(messages: pa.Table) -> pa.Table:
    """Return the attributes of messages on the plane, as double, with two more for the position."""
    names = [name for name in messages.column_names if name not in ("tags", "location")]
    location = messages["location"].combine_chunks()
    columns = {name: messages[name].cast(pa.float64()) for name in names}
    return pa.table(columns | {X: location.field("x"), Y: location.field("y")})


def tags_as_constraints(subscriptions: pa.Table) -> pa.Table:
    """Return `key`, `constraints` and `area` of subscriptions, with a constraint for each tag instead: that it is 1."""
    tags = subscriptions["tags"].combine_chunks()
    flat = tags.flatten()
    asked = constraints_of(flat, np.zeros(len(flat), np.uint8), pa.array(np.ones(len(flat), np.int64)))
    constraints = lists_of(tags.value_lengths().to_numpy(), asked)
    return pa.table({"key": subscriptions["key"], "constraints": constraints, "area": subscriptions["area"]})


def tags_as_attributes(messages: pa.Table) -> pa.Table:
    """Return `location` of messages, and an attribute for each tag, which is 1 where a message has it."""
    tags = messages["tags"].combine_chunks()
    encoded = tags.flatten().dictionary_encode()
    there = np.zeros((len(encoded.dictionary), len(tags)), np.bool_)
    there[encoded.indices.to_numpy(), pc.list_parent_indices(tags).to_numpy()] = True
    ones = np.ones(len(tags), np.int64)
    columns = {name: pa.array(ones, mask=~row) for name, row in zip(encoded.dictionary.to_pylist(), there, strict=True)}
    return pa.table({"location": messages["location"]} | columns)
