"""Systems that match contents and areas: built from the same subscriptions, timed in turn, and compared."""

from __future__ import annotations

import operator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import CudaOptions
from tagmatch.model.arrays import offsets_of
from tagmatch_bench.harness.results import Answers
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.catalogue import LOCATED, LOCATED_GPU
from tagmatch_bench.systems.matcher import CallSize, UnavailableError, answers_to_pylist, wrong_and_missing
from tagmatch_bench.systems.tagmatch_content import LocatedMatching, LocatedOneByOne, TagmatchLocated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tagmatch.model.arrays import BoolArray, F64Array, U64Array
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result


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
_EARTH_METRES = 6_371_008.8
_TAGS = "tags"
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class LocatedScenario:
    """Subscriptions with areas, and messages.

    Attributes
    ----------
    name : str
    subscriptions, messages : pyarrow.Table
        As `tagmatch.workloads.location` makes them, on the plane or on the sphere.
    compared_subscriptions, compared_messages : pyarrow.Table, optional
        The same as CLCB takes them, where that is not so: with tags as constraints.
    """

    name: str
    subscriptions: pa.Table
    messages: pa.Table
    compared_subscriptions: pa.Table | None = None
    compared_messages: pa.Table | None = None

    @property
    def for_others(self) -> tuple[pa.Table, pa.Table]:
        """What CLCB takes, and is asked."""
        if self.compared_subscriptions is None or self.compared_messages is None:
            return self.subscriptions, self.messages.drop_columns(
                [_TAGS] if _TAGS in self.messages.column_names else []
            )
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
        keys, rows = (
            self.subscriptions["key"].to_numpy(),
            [np.flatnonzero(self.inside(0))] if len(self.messages) else [],
        )
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

    def on_edge(self, message: int, key: int) -> bool:
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
    return _EARTH_METRES * np.arctan2(
        np.hypot(one, other), np.sin(a) * np.sin(b) + np.cos(a) * np.cos(b) * np.cos(across)
    )


def _has_content(stored: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    """Whether a message has the tags of a subscription, and satisfies its constraints."""
    if not set(stored["tags"]) <= set(message["tags"]):
        return False
    given = [(message.get(each["attr"]), each) for each in stored["constraints"]]
    return all(value is not None and _OPERATORS[each["op"]](value, each["value"]) for value, each in given)


@dataclass(frozen=True, slots=True)
class Located:
    """What was found of a scenario: microseconds a message by system, and the keys of an answer in the mean."""

    micros: Mapping[str, Samples]
    keys_per_message: float


def measure(
    bench: Bench, result: Result, scenario: LocatedScenario, whole: TagmatchLocated, names: Iterable[str] = ALL
) -> Located:
    """Time systems on one thread, each key of an answer once, and compare all answers.

    What is to be skipped, and what cannot run here, is noted in the result.
    """
    others = {**LOCATED, **LOCATED_GPU}
    own = {WHOLE: whole, MATCHING: LocatedMatching(whole), CALLED: LocatedOneByOne(whole)}
    subscriptions, _ = scenario.for_others
    systems: dict[str, Any] = {}
    with ExitStack() as stack:
        for name in names:
            if name in bench.options.skip:
                result.unavailable[name] = "skipped"
                continue
            if name in own:
                systems[name] = own[name]
                continue
            with bench.doing(f"{result.name}: building {name}, {scenario.name}"):
                try:
                    systems[name] = (
                        _on_a_gpu(whole, stack) if name == MATCHING_GPU else others[name].build(subscriptions, 1)
                    )
                except UnavailableError as error:
                    result.unavailable[name] = str(error)
                    continue
            stack.callback(systems[name].close)
        return timed(bench, result, scenario, systems, dict.fromkeys(others, True))


def _on_a_gpu(whole: TagmatchLocated, stack: ExitStack) -> LocatedMatching:
    """The same index on a CUDA device, which has packets of any size; it is closed in the end."""
    again = whole.again(device="cuda", threads=1, plane=whole.plane, cuda=CudaOptions(devices=(0,), fewest_queries=0))
    stack.callback(again.close)
    return LocatedMatching(again)


def timed(
    bench: Bench,
    result: Result,
    scenario: LocatedScenario,
    systems: Mapping[str, Any],
    single: Mapping[str, bool] | None = None,
) -> Located:
    """Time these systems in turn, and compare all answers; those of single precision may differ on edges."""
    options, single = bench.options, single or {}
    prepared = {name: system.prepare(_asked(name, system, scenario, single)) for name, system in systems.items()}

    def ask(name: str, count: int) -> Any:
        return systems[name].match_many(prepared[name][:count], unique=True)

    sizes = {name: CallSize(whole=each.packet_size) for name, each in prepared.items() if hasattr(each, "packet_size")}
    sizes |= {
        name: CallSize(most=_MOST_CALLS) for name, system in systems.items() if isinstance(system, LocatedOneByOne)
    }
    with bench.doing(f"{result.name}: matching, {scenario.name}"):
        works = {name: partial(ask, name) for name in systems}
        found = rates(works, len(scenario.messages), rounds=options.rounds, seconds=options.seconds, sizes=sizes)
    with bench.doing(f"{result.name}: checking, {scenario.name}"):
        keys = _compare(result, scenario, works, {name: each.items for name, each in found.items()}, single)
    micros = {name: Samples(tuple(1e6 / rate for rate in each.values), each.items) for name, each in found.items()}
    return Located(micros, keys)


def _asked(name: str, system: Any, scenario: LocatedScenario, single: Mapping[str, bool]) -> pa.Table:
    if isinstance(system, LocatedOneByOne):
        return scenario.messages[:_MOST_CALLS]
    return scenario.for_others[1] if name in single else scenario.messages


def _compare(
    result: Result,
    scenario: LocatedScenario,
    works: Mapping[str, Callable[[int], Any]],
    timed: Mapping[str, int],
    single: Mapping[str, bool],
) -> float:
    """Compare answers with brute force, and all that were timed with those of `WHOLE`; returns the keys of one."""
    count = len(scenario.messages)
    answers = {name: work(min(count, max(scenario.sample, timed[name]))) for name, work in works.items()}
    for name, given in answers.items():
        edges = scenario if name in single else None
        where = f"{scenario.name}, beside brute force"
        add_answers(result, where, name, given[: scenario.sample], scenario.right, edges)
        if name != WHOLE and WHOLE in answers:
            both = min(len(given), len(answers[WHOLE]))
            where = f"{scenario.name}, beside {WHOLE}"
            add_answers(result, where, name, given[:both], answers[WHOLE][:both], edges)
    most = max(answers.values(), key=len)
    return _keys(most) / max(len(most), 1)


def _keys(answers: Any) -> int:
    return len(answers.flatten()) if isinstance(answers, pa.Array) else sum(map(len, answers))


def add_answers(
    result: Result, where: str, system: str, given: Any, right: Sequence[Any], edges: LocatedScenario | None = None
) -> None:
    """Add how answers compare with the right ones; with `edges`, both may be so on the edges of its areas."""
    count = min(len(given), len(right))
    given, right = given[:count], right[:count]
    wrong, missing = wrong_and_missing(given, right)
    if edges is not None and wrong + missing:
        wrong, missing = _off_edges(edges, answers_to_pylist(given), answers_to_pylist(right))
    result.answers.append(Answers(where, system, True, count, _keys(given), wrong, missing))


def _off_edges(scenario: LocatedScenario, given: list[list[int]], right: list[list[int]]) -> tuple[int, int]:
    wrong = missing = 0
    for message, (have, due) in enumerate(zip(given, right, strict=True)):
        off = {key for key in set(have) ^ set(due) if not scenario.on_edge(message, key)}
        wrong += len(off & set(have))
        missing += len(off & set(due))
    return wrong, missing


#: Names that the workload has for no other attribute
X, Y = "x", "y"
_CONSTRAINT = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.float64(), "upper": pa.float64()})


def areas_as_constraints(subscriptions: pa.Table) -> pa.Table:
    """Return `key` and `constraints` of subscriptions on the plane, with two more for the area.

    Parameters
    ----------
    subscriptions : pyarrow.Table
        As of `Location.subscriptions` without `degrees`.

    Examples
    --------
    >>> from tagmatch.workloads.location import Location, LocationOptions
    >>> from tagmatch_bench.harness.located import areas_as_constraints
    >>> one = Location(LocationOptions(subscribers=1)).subscriptions(0, 1, content="tags")
    >>> [(each["attr"], each["op"]) for each in areas_as_constraints(one)["constraints"][0].as_py()]
    [('x', 'between'), ('y', 'between')]
    """
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
    offsets = offsets_of(sizes + 2, np.int32)
    constraints = pa.ListArray.from_arrays(pa.array(offsets), joined.take(pa.array(order)))
    return pa.table({"key": subscriptions["key"], "constraints": constraints})


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
    count = len(flat)
    columns = [flat, *(pa.repeat(pa.scalar(each), count) for each in ("=", 1)), pa.nulls(count, pa.int64())]
    asked = pa.StructArray.from_arrays(columns, ["attr", "op", "value", "upper"])
    offsets = offsets_of(tags.value_lengths().to_numpy().astype(np.int64), np.int32)
    constraints = pa.ListArray.from_arrays(pa.array(offsets), asked)
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
