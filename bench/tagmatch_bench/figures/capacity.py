"""`tagmatch-bench capacity`: what a subscription takes, by what it has: bytes, and microseconds of a processor."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import TagMatch
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.results import Result
from tagmatch_bench.harness.timing import Samples, seconds_of

#: Shares of the full database
_SHARES = (0.1, 1.0)
#: Different conditions; degrees of a box
_PRICES, _SIDE = 1_000, 0.4

Columns: TypeAlias = Mapping[str, Any]


def _nothing(_: Any) -> Columns:
    return {}


def _priced(numbers: Any) -> Columns:
    limits = pa.array(numbers % _PRICES).cast(pa.string())
    return {"where": pc.binary_join_element_wise("price <= ", limits, "")}


def _west(numbers: Any) -> Any:
    return numbers % 400 / 10 - 10.0


def _placed(numbers: Any) -> Columns:
    west, south = _west(numbers), 35.0 + 0 * numbers
    sides = {"west": west, "south": south, "east": west + _SIDE, "north": south + _SIDE}
    return {"area": pa.table(sides).to_struct_array()}


def _with_data(numbers: Any) -> Columns:
    return {"priority": pa.array(numbers % 10), "email": _names(numbers)}


def _names(numbers: Any) -> Any:
    return pc.binary_join_element_wise("user", pa.array(numbers).cast(pa.string()), "")


@dataclass(frozen=True)
class Kind:
    """What subscriptions have besides tags and keys, which are their numbers."""

    columns: Callable[[Any], Columns] = _nothing  # of subscriptions, by their numbers
    asked: Callable[[Any], Columns] = _nothing  # of messages, by theirs
    holds: Callable[[Any, Any], Any] = lambda numbers, _: numbers >= 0  # for subscriptions and a message
    options: Mapping[str, Any] = field(default_factory=dict)  # of the index


KINDS = {
    "tags": Kind(),
    "tags, layout balanced": Kind(options={"layout": "balanced"}),
    "tags, string keys": Kind(lambda numbers: {"key": _names(numbers)}, options={"key_type": "string"}),
    "tags and a condition": Kind(
        _priced, lambda each: {"price": each % _PRICES}, lambda numbers, each: each % _PRICES <= numbers % _PRICES
    ),
    "tags and an area": Kind(
        _placed,
        lambda each: {"location": pa.table({"lon": _west(each) + 0.05, "lat": 35.05 + 0 * each}).to_struct_array()},
        lambda numbers, each: abs(_west(each) + 0.05 - _west(numbers) - _SIDE / 2) <= _SIDE / 2,
    ),
    "tags and data": Kind(_with_data, options={"data": {"priority": "int64", "email": "string"}}),
}


def capacity(bench: Bench) -> Result:
    """What each kind of subscription takes at two sizes."""
    result = bench.result(
        "capacity",
        "What a subscription takes",
        f"""Sets of the recorded workload, each with its own key, in a folder, on the CPU with one thread. *Memory* is
        `index_bytes` of `stats`, and *disk* the folder after `consolidate`. Times are of the processor, the medians of
        {bench.options.rounds}: of `match_many`, after a call that is not counted; and of one *build*, which is
        `add_subscriptions` and `consolidate`. A condition is `price <= N`, an area a box of {_SIDE} degrees, and data a
        number and a name. Messages have the price or the place that these ask for.""",
    )
    a_subscription, a_message = "bytes a subscription", "µs of a processor a message"
    panels = {
        "memory": result.panel("memory", "subscriptions", a_subscription, log=False),
        "disk": result.panel("disk", "subscriptions", a_subscription, log=False),
        "build": result.panel("build", "subscriptions", "µs of a processor a subscription"),
        "match": result.panel("match", "subscriptions", a_message),
    }
    for share in _SHARES:
        workload = bench.workload(bench.sets(share), 1.0)
        sets, queries = workload.sets, workload.queries[: bench.options.queries]
        checked = queries[: bench.options.checked]
        numbers, place = np.arange(len(sets)), f"{len(sets):,}"
        numbered = pa.table({"tags": sets["tags"], "key": numbers.astype(np.uint64)})
        right = right_answers(numbered, checked, threads=bench.options.threads)
        for name, kind in KINDS.items():
            columns = {"tags": sets["tags"], "key": numbered["key"], **kind.columns(numbers)}
            asked = pa.table({"tags": queries, **kind.asked(np.arange(len(queries)))})
            with bench.doing(f"capacity: {name}, {place}"):
                found, answers = _measured(bench, pa.table(columns), asked, kind.options)
            for what, value in found.items():
                panels[what].add(name, place, value)
            due = [[key for key in keys if kind.holds(np.int64(key), each)] for each, keys in enumerate(right)]
            result.compare(place, name, _keys(answers[: len(checked)]), pa.array(due, pa.list_(pa.uint64())))
    return result


def _keys(answers: pa.ListArray) -> pa.ListArray:
    """Answers as numbers, which names end with."""
    keys = answers.values
    if not pa.types.is_integer(keys.type):
        keys = pc.replace_substring(keys.cast(pa.string()), "user", "").cast(pa.uint64())
    return pa.ListArray.from_arrays(answers.offsets, keys)


def _measured(
    bench: Bench, subscriptions: pa.Table, asked: pa.Table, options: Mapping[str, Any]
) -> tuple[dict[str, float | Samples], pa.ListArray]:
    with tempfile.TemporaryDirectory() as folder, TagMatch(folder, device="cpu", threads=1, **options) as tm:
        add = tm.put_many if "data" in options else tm.add_subscriptions

        def build() -> None:
            add(subscriptions)
            tm.consolidate()

        seconds = seconds_of(build, process_time)
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        answers = tm.match_many(asked)
        ask = partial(seconds_of, partial(tm.match_many, asked), process_time)
        matched = Samples(tuple(ask() for _ in range(bench.options.rounds)))
        count = len(subscriptions)
        found: dict[str, float | Samples] = {
            "memory": tm.stats()["index_bytes"] / count,
            "disk": stored / count,
            "build": seconds * 1e6 / count,
            "match": matched.times(1e6 / len(asked)),
        }
        return found, answers
