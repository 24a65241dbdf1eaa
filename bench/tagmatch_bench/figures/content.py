"""`tagmatch-bench content`: constraints on attributes, compared with SFF, OCM and BE-Tree, and their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.pipeline.filters.index import filter_index
from tagmatch_bench.figures import content_scenarios as scenarios
from tagmatch_bench.figures.content_scenarios import BOTH, CONSTRAINTS, TAGS, Mixed, mixed
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.figures.location_spatial import CLIENTS, R_TREE, beside_grid
from tagmatch_bench.figures.published import MICROS, PCM_TABLE2
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.content import GPU, MATCHING, OCM, SFF, WHOLE, Measured, Scenario, measure
from tagmatch_bench.harness.reference import all_tags_in, satisfied_rows
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import alternate
from tagmatch_bench.systems.matcher import CallSize, Matcher, UnavailableError
from tagmatch_bench.systems.tagmatch_content import TagmatchContent, TagmatchMatching

#: Times as fast as OCM and SFF, by the constraints from which on they hold
_AGAINST_OCM = {1e6: Target(5), 1e7: Target(25)}
_AGAINST_SFF = {1e6: Target(45)}
_IN_FIGURES = {1e6: Target(5)}
#: Microseconds, by the filters up to which they hold
_DENSE = {1e5: Target(12, at_most=True), 1e6: Target(90, at_most=True)}
_BYTES = Target(30, at_most=True)
#: Microseconds a constraint
_BUILD = Target(1.5, at_most=True)
_ON_TWO_THREADS = Target(1.8)
_ON_A_GPU = Target(20)

#: Constraints of the default scenario in the paper
_OF_THE_PAPER = 1e6
#: Constraints from which on memory and build have targets
_LARGE = 1_000_000
#: After these many seconds no more builds of one kind are begun
_BUILD_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ContentSizes:
    """How large the scenarios are; see the command's help."""

    constraints: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    figures: int = 1_000_000
    filters: tuple[int, ...] = (100_000, 1_000_000)
    real: int = 100_000
    mixed: int = 1_000_000
    areas: tuple[int, ...] = (100_000, 1_000_000)
    cities: Path | None = None
    parts: tuple[str, ...] = PARTS["content"]


def content(bench: Bench, sizes: ContentSizes) -> Result:
    """Measure all parts that are wanted."""
    result = bench.result(
        "content",
        "Constraints on attributes",
        """Microseconds a message, on the CPU and on one thread unless said. *End to end* is `match_many` on an Arrow
        table of messages, to Arrow keys. *Matching alone* begins with the messages as codes, and so does the figure
        timed of OCM, SFF and BE-Tree: it is subset match, key lookup and merging, the same for all four. Each gives
        each key once (`match-unique`), as PCM's interfaces. *Brute force*, and OCM, are what answers are compared
        with. PCM: Margara, Cugola, IEEE TPDS 2014; its own numbers, of the default scenario with a million
        constraints, are of six cores (OCM) and a GPU (CCM) of 2012. A *build* is `add_subscriptions` on an Arrow
        table with a column `constraints`, and `consolidate`; *index alone* is the part built from the stored rows,
        whenever an index is opened. Bytes are those of this index; *with the stored rows* are all. In *real data*,
        100,000 filters ask for cities of the world and for Debian packages; the other systems get them in
        numbers. *Areas* are alone, compared with a grid in C++ and libspatialindex's R*-tree, as in
        `location`.""".replace("100,000", f"{sizes.real:,}"),
        **asdict(sizes),
    )
    works = {
        "pcm": partial(_pcm, bench, result, sizes.constraints),
        "figures": partial(_figures, bench, result, sizes.figures),
        "dense": partial(_dense, bench, result, sizes.filters),
        "real": partial(_real, bench, result, sizes),
        "mixed": partial(tags_and_constraints, bench, result, sizes.mixed),
        "areas": partial(beside_grid, bench, result, sizes.areas, (CLIENTS, R_TREE)),
    }
    bench.do(works, sizes.parts)
    return result


def _built(bench: Bench, scenario: Scenario) -> closing[TagmatchContent]:
    with bench.doing(f"content: building tagmatch, {scenario.name}"):
        return closing(TagmatchContent(scenario.stored))


def _from(targets: Mapping[float, Target], size: float) -> Target | None:
    """The target of the largest size that is reached."""
    return next((targets[each] for each in sorted(targets, reverse=True) if size >= each), None)


def _against(result: Result, name: str, measured: Measured, target: Target | None, other: str = OCM) -> None:
    result.add(f"{name}: matching alone against {other}", measured.ratio(MATCHING, other), "times", target)
    result.add(f"{name}: end to end against {other}", measured.ratio(WHOLE, other), "times")


def _pcm(bench: Bench, result: Result, sizes: tuple[int, ...]) -> None:
    panel = result.panel("PCM, default scenario", "constraints", MICROS, "lines")
    panel.published += [replace(row, x=_OF_THE_PAPER) for row in PCM_TABLE2 if _OF_THE_PAPER in sizes]
    for size in sizes:
        with bench.doing(f"content: generating {size:,} constraints"):
            scenario = scenarios.pcm(size, bench.options.queries, bench.options.seed)
        with _built(bench, scenario) as whole:
            measured = measure(bench, result, scenario, whole)
            panel.add_all(measured.micros, float(size))
            _against(result, scenario.name, measured, _from(_AGAINST_OCM, size))
            _against(result, scenario.name, measured, _from(_AGAINST_SFF, size), SFF)
            _costs(bench, result, scenario, whole)
            if size == max(each for each in sizes if each <= _LARGE or each == min(sizes)):
                _threads(bench, result, scenario, whole, measured)


def _figures(bench: Bench, result: Result, constraints: int) -> None:
    for figure in scenarios.pcm_figures(constraints):
        panel = result.panel(f"PCM Figure {figure.number}", figure.axis, MICROS, "lines", log_x=figure.log_x)
        for place, scenario in figure.scenarios(constraints, bench.options.queries, bench.options.seed):
            with _built(bench, scenario) as whole:
                measured = measure(bench, result, scenario, whole)
            panel.add_all(measured.micros, place)
            _against(result, scenario.name, measured, _from(_IN_FIGURES, constraints))


def _dense(bench: Bench, result: Result, sizes: tuple[int, ...]) -> None:
    panel = result.panel("dense: 20 attributes, 10 intervals", "filters", MICROS, "lines")
    for size in sizes:
        with bench.doing(f"content: generating {size:,} dense filters"):
            scenario = scenarios.dense(size, bench.options.queries, bench.options.seed)
        with _built(bench, scenario) as whole:
            measured = measure(bench, result, scenario, whole)
            panel.add_all(measured.micros, float(size))
            target = next((_DENSE[each] for each in sorted(_DENSE) if size <= each), None)
            result.add(f"{scenario.name}: matching alone", measured.micros[MATCHING], MICROS, target)
            result.add(f"{scenario.name}: end to end", measured.micros[WHOLE], MICROS)
            _against(result, scenario.name, measured, None)
            _costs(bench, result, scenario, whole)
            if size == min(sizes):
                _threads(bench, result, scenario, whole, measured)


def _real(bench: Bench, result: Result, sizes: ContentSizes) -> None:
    panel = result.panel("real data", "data", MICROS)
    try:
        for scenario in scenarios.real(sizes.real, bench.options.queries, bench.options.seed, sizes.cities):
            with _built(bench, scenario) as whole:
                measured = measure(bench, result, scenario, whole)
                panel.add_all(measured.micros, scenario.name)
                _against(result, scenario.name, measured, None)
                result.add(f"{scenario.name}: keys of an answer", measured.keys_per_message, "keys")
    except UnavailableError as error:
        result.unavailable["real data"] = str(error)


def _costs(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent) -> None:
    """Add bytes and build time, a constraint."""
    count, large = scenario.constraints, scenario.constraints >= 0.9 * _LARGE
    result.add(
        f"{scenario.name}: memory", whole.matcher.about().nbytes / count, "B a constraint", _BYTES if large else None
    )
    result.add(f"{scenario.name}: memory, with the stored rows", whole.nbytes() / count, "B a constraint")
    segments = whole.index.snapshot.segments
    builds = {
        "end to end": lambda: TagmatchContent(scenario.stored).close(),
        "index alone": lambda: [filter_index(segment) for segment in segments],
    }
    with bench.doing(f"content: building, {scenario.name}"):
        taken = alternate(builds, bench.options.rounds, most_seconds=_BUILD_SECONDS)
    for how, seconds in taken.items():
        what = f"{scenario.name}: build, {how}"
        result.add(what, seconds.times(1e6 / count), "µs a constraint", _BUILD if large else None)


def _threads(bench: Bench, result: Result, scenario: Scenario, whole: TagmatchContent, measured: Measured) -> None:
    """Add what two threads bring end to end, and a device against two threads."""
    with ExitStack() as stack:
        systems = {threads: whole.again(threads=threads, device="cpu") for threads in (1, 2)}
        for each in systems.values():
            stack.callback(each.close)
        works = {
            f"{threads}": (lambda count, each=each: each.match_many(scenario.asked[:count], unique=True))
            for threads, each in systems.items()
        }
        # So many that each thread has a packet
        calls = dict.fromkeys(works, CallSize(2 * whole.matcher.packet_size.fewest))
        found = bench.rates(f"content: two threads, {scenario.name}", works, len(scenario.asked), calls)
    ratio = found["2"].ratios(found["1"])
    result.add(f"{scenario.name}: end to end, two threads against one", ratio, "times", _ON_TWO_THREADS)
    if GPU in measured.micros:
        on_gpu = measured.micros[GPU].per(1e6)
        result.add(f"{scenario.name}: GPU against two threads", on_gpu.over(found["2"]), "times", _ON_A_GPU)


_CHECKED = 50
_NO_SLOWER = Target(1, at_most=True)
_END_TO_END, _ALONE = "end to end", "matching alone"


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
            works[f"{what}, {_END_TO_END}"] = partial(_ask, systems[what], whole_asked)
            works[f"{what}, {_ALONE}"] = partial(_ask, alone, asked)
            sizes[f"{what}, {_ALONE}"] = CallSize(whole=asked.packet_size)
        found = bench.rates("content: matching, tags and constraints", works, bench.options.queries, sizes)
        with bench.doing("content: checking, tags and constraints"):
            _check(result, data, systems)
    micros = {name: each.per(1e6) for name, each in found.items()}
    panel = result.panel("tags and constraints", "", "µs a message")
    for what in systems:
        for how in (_END_TO_END, _ALONE):
            panel.add(what, how, micros[f"{what}, {how}"])
    for how in (_ALONE, _END_TO_END):
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
    asked = [pa.array(tags, pa.string()) for tags in messages["tags"].to_pylist()]
    contained = [np.flatnonzero(all_tags_in(stored, tags)) for tags in asked]
    right = {
        TAGS: contained,
        CONSTRAINTS: satisfied,
        BOTH: [np.intersect1d(one, other) for one, other in zip(contained, satisfied, strict=True)],
    }
    for what, system in systems.items():
        given = system.match_many(data.asked(what)[:_CHECKED])
        result.compare("tags and constraints", what, given, right[what])
