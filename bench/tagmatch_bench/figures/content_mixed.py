"""Tags and constraints in one subscription, beside each of them alone."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import offsets_of
from tagmatch_bench.figures.content_scenarios import BOTH, CONSTRAINTS, TAGS, Mixed, mixed
from tagmatch_bench.harness.content_reference import satisfied_rows
from tagmatch_bench.harness.reference import all_true
from tagmatch_bench.harness.results import Answers, Target
from tagmatch_bench.harness.timing import Samples, rates
from tagmatch_bench.systems.matcher import CallSize, count_keys, wrong_and_missing
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchMatching

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import I64Array
    from tagmatch_bench.harness.bench import Bench
    from tagmatch_bench.harness.results import Result
    from tagmatch_bench.systems.matcher import Matcher

_CHECKED = 50
_NO_SLOWER = Target(1, at_most=True)
_WHOLE, _ALONE = "end to end", "matching alone"


def tags_and_constraints(bench: Bench, result: Result, constraints: int) -> None:
    """Measure messages against subscriptions with tags, with constraints, and with both."""
    options = bench.options
    with bench.doing("content: generating tags and constraints"):
        data = mixed(bench, constraints, options.queries)
    works: dict[str, Callable[[int], object]] = {}
    sizes: dict[str, CallSize] = {}
    with ExitStack() as stack:
        systems = {}
        for what, table in data.subscriptions.items():
            with bench.doing(f"content: building, {what}"):
                systems[what] = TagmatchContent(table)
            stack.callback(systems[what].close)
            alone = TagmatchMatching(systems[what])
            whole_asked, asked = data.asked(what), alone.prepare(data.asked(what))
            works[f"{what}, {_WHOLE}"] = partial(_ask, systems[what], whole_asked)
            works[f"{what}, {_ALONE}"] = partial(_ask, alone, asked)
            sizes[f"{what}, {_ALONE}"] = CallSize(whole=asked.packet_size)
        with bench.doing("content: matching, tags and constraints"):
            found = rates(works, options.queries, rounds=options.rounds, seconds=options.seconds, sizes=sizes)
        with bench.doing("content: checking, tags and constraints"):
            _check(result, data, systems)
    micros = {name: Samples(tuple(1e6 / rate for rate in each.values)) for name, each in found.items()}
    panel = result.panel("tags and constraints", "", "µs a message")
    for what in systems:
        for how in (_WHOLE, _ALONE):
            panel.add(what, how, micros[f"{what}, {how}"])
    for how in (_ALONE, _WHOLE):
        slower = max((micros[f"{what}, {how}"] for what in (TAGS, CONSTRAINTS)), key=lambda each: each.median)
        ratio = micros[f"{BOTH}, {how}"].over(slower)
        result.add(
            f"{BOTH}: {how}, time of the slower one alone", ratio, "times", _NO_SLOWER if how == _ALONE else None
        )


def _ask(system: Matcher[Any], messages: Any, count: int) -> object:
    return system.match_many(messages[:count])


def _check(result: Result, data: Mixed, systems: dict[str, TagmatchContent]) -> None:
    """Compare the first answers of each index with brute force."""
    messages = data.messages[:_CHECKED]
    stored = data.subscriptions[BOTH]["tags"].combine_chunks()
    satisfied = satisfied_rows(data.subscriptions[CONSTRAINTS], messages.drop_columns(["tags"]))
    contained = [_contained(stored, tags) for tags in messages["tags"].to_pylist()]
    right = {
        TAGS: contained,
        CONSTRAINTS: satisfied,
        BOTH: [np.intersect1d(one, other) for one, other in zip(contained, satisfied, strict=True)],
    }
    for what, system in systems.items():
        given = system.match_many(data.asked(what)[:_CHECKED])
        due = [rows.astype(np.uint64) for rows in right[what]]
        compared = wrong_and_missing(given, due)
        result.answers.append(Answers("tags and constraints", what, True, len(due), count_keys(given), *compared))


def _contained(stored: pa.ListArray, tags: list[str]) -> I64Array:
    """The rows whose tags are all among these."""
    known = pc.is_in(stored.flatten(), value_set=pa.array(tags, pa.string())).to_numpy(zero_copy_only=False)
    return np.flatnonzero(all_true(known, offsets_of(stored.value_lengths().to_numpy())))
