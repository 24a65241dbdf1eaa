"""`tagmatch-bench peers`: one core, compared with a good C++ programmer's work, joins of papers, and a grid."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import process_time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.figures.location_spatial import beside_grid
from tagmatch_bench.figures.published import against
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.peers import DATA
from tagmatch_bench.harness.reference import right_answers
from tagmatch_bench.harness.results import Panel, Result, Target
from tagmatch_bench.harness.timing import Samples, in_turns, seconds_of
from tagmatch_bench.systems.catalogue import CPP, CPP_BLOCKS, LIMIT, PEERS, PYTHON_DICT, RAREST, TT_JOIN, some
from tagmatch_bench.systems.tagmatch import DictionaryEncoded

_ENCODED, _UNIQUE, _ONE = ", dictionary-encoded", ", unique", ", one query"
#: A form, the others whose sooner one it is compared with, and how many times as fast it should be
_COMPARED = (
    (RAREST, "the sooner C++", (CPP, CPP_BLOCKS), Target(2)),
    (RAREST + _ENCODED, "the sooner C++", (CPP + _ENCODED, CPP_BLOCKS + _ENCODED), Target(1.5)),
    (RAREST + _ONE, CPP, (CPP + _ONE,), Target(1)),
    (RAREST, TT_JOIN, (TT_JOIN,), Target(1)),
    (RAREST, LIMIT, (LIMIT,), Target(1)),
    (RAREST + _UNIQUE, RAREST, (RAREST,), Target(0.77)),
)
#: Queries that are asked one by one, and those whose answers are compared with brute force; sets from which on a dict
#: of Python takes too much memory; data of too many answers for a join
_ONE_BY_ONE, _CHECKED, _MOST_OF_PYTHON, _NOT_JOINED = 1_000, 25, 1_000_000, "large"
#: Of a turn: a single brief call would find in the caches what the system before it has left there
_TURN_S = 0.05


def peers(bench: Bench, *, parts: tuple[str, ...] = PARTS["peers"]) -> Result:
    """Measure all data sets that are wanted."""
    result = bench.result(
        "peers",
        "Compared with C++ on one core",
        f"""Processor time on the CPU, of one thread on one core. *{CPP}* and *{CPP_BLOCKS}* get the same Arrow strings,
        or dictionaries, as `match_many`, and give Arrow keys; they are compiled here with `-O3 -march=native`, and
        use the memory of answers again. *{TT_JOIN}* and *{LIMIT}* get ranks of tags; what they build in a call is
        counted, what makes ranks is not. A call has all queries. *One query* is `match` with a list of strings, one
        after the other, and a function of C++ that ctypes calls with it. Data are made by generators, at a scale of
        {bench.options.scale:g}. Systems take turns in {bench.options.rounds} rounds, whose medians count, after a
        call that is not counted; a turn has calls for a twentieth of a second, or one. Ratios are medians of the
        rounds' ratios. Answers of *{RAREST}* are compared with
        brute force, and all answers of others with its own.""",
        parts=parts,
    )
    panel = result.panel("queries", "data", "µs of a processor a query")
    works = {name: partial(_measure, bench, result, panel, name) for name in DATA}
    bench.do({**works, "areas": partial(_areas, bench, result)}, parts)
    result.panels = [panel for panel in result.panels if panel.rows]
    return result


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Keep this thread on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _measure(bench: Bench, result: Result, panel: Panel, name: str) -> None:
    with bench.doing(f"peers: generating {name}"):
        sets, queries = DATA[name](bench.options)
    of_set, of_query = (pc.mean(pc.list_value_length(lists)).as_py() for lists in (sets["tags"], queries))
    where = f"{name}, {len(sets):,} sets of {of_set:.3g} tags, queries of {of_query:.3g}"
    systems: dict[str, Any] = some([RAREST, PYTHON_DICT] if len(sets) <= _MOST_OF_PYTHON else [RAREST])
    systems |= {each: build for each, build in PEERS.items() if name != _NOT_JOINED or each not in (TT_JOIN, LIMIT)}
    with bench.built(systems, sets, result) as built, _on_one_core():
        found = _timed(bench, result, where, built, sets, queries)
    panel.add_all(found, name)
    for system, other, sooner_of, target in _COMPARED:
        if there := [found[each] for each in sooner_of if each in found]:
            sooner = min(there, key=lambda samples: samples.median)
            result.add(f"{where}: {against(system, other)}", sooner.ratios(found[system]), "times", target)


def _timed(
    bench: Bench, result: Result, where: str, built: Mapping[str, Any], sets: pa.Table, queries: pa.ListArray
) -> dict[str, Samples]:
    """Microseconds a query by system and form, all queries in a call; all answers are compared."""
    encoded = {each + _ENCODED: DictionaryEncoded(built[each]) for each in (RAREST, CPP, CPP_BLOCKS) if each in built}
    many = {**built, **encoded, RAREST + _UNIQUE: built[RAREST]}
    # Dictionaries are made before
    asked = {name: matcher.prepare(queries)[: len(queries)] for name, matcher in many.items()}
    one = {each + _ONE: built[each].match for each in (RAREST, CPP, PYTHON_DICT) if each in built}
    lists = queries[:_ONE_BY_ONE].to_pylist()

    def ask(name: str) -> Any:
        if name in one:
            match = one[name]
            return [match(query) for query in lists]
        return many[name].match_many(asked[name], unique=name.endswith(_UNIQUE))

    works = {name: partial(ask, name) for name in (*many, *one)}
    with bench.doing(f"peers: warming up and checking, {where}"):
        right = {form: ask(RAREST + form) for form in ("", _UNIQUE)}
        for form, keys in right.items():
            due = right_answers(sets, queries[:_CHECKED], unique=bool(form))
            result.compare(f"{where}, against brute force", RAREST + form, keys[: len(due)], due)
        for name in works.keys() - {RAREST, RAREST + _UNIQUE}:
            given = ask(name)
            result.compare(f"{where}, against {RAREST}", name, given, right[""][: len(given)])
        result.add(f"{where}: keys of an answer", len(right.pop("").flatten()) / len(queries), "keys")
    with bench.doing(f"peers: matching, {where}"):
        seconds = {name: partial(seconds_of, work, process_time, at_least=_TURN_S) for name, work in works.items()}
        taken = in_turns(seconds, bench.options.rounds)
    return {name: seconds.times(1e6 / len(lists if name in one else queries)) for name, seconds in taken.items()}


def _areas(bench: Bench, result: Result) -> None:
    """Compare 100,000 and a million circles, each from a millionth to a ten-thousandth of the square, with a grid."""
    with _on_one_core():
        beside_grid(bench, result, [*map(bench.sets, (0.1, 1.0))])
