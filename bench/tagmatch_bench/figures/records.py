"""`tagmatch-bench records`: subscriptions as records, on the CPU, each compared with the same work without them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch import TagMatch
from tagmatch_bench.figures.figure import PARTS
from tagmatch_bench.harness.bench import Bench
from tagmatch_bench.harness.results import Result, Target
from tagmatch_bench.harness.timing import Samples, in_turns, seconds_of

_DATA = {"tenant": "dictionary", "priority": "int64", "email": "string"}
#: Single calls of a round; tags that many keys have one of; keys that are asked for, at most
_CALLS, _FEW_TAGS, _LIMIT = 2_000, 50, 10
#: Conditions of `at least 2 of`: different tags, tags of each condition, and queries that are compared
_TAGS, _OF, _CHECKED = 2_000, 4, 25
_TENANTS = (2, 10, 100)
#: Different tags, for sets of three tags; a query has half of them
_WIDE = 200


def records(bench: Bench, *, parts: tuple[str, ...] = PARTS["records"]) -> Result:
    """Measure all parts that are wanted."""
    result = bench.result(
        "records",
        "Subscriptions as records",
        f"""{bench.sets():,} keys, each put with a set and data in {len(_DATA)} columns, on the CPU, with
        {bench.options.threads} threads; processor time. Both sides of a ratio take turns in {bench.options.rounds}
        rounds, whose medians count, after a call that is not counted; every second round goes the other way; answers of
        both are compared. *Single calls* are {_CALLS:,}, to an index in a folder with the default durability. *An index
        of only these* has no other keys, and *answers of many keys* are of sets that many keys have.""",
        parts=parts,
    )
    works = {
        "calls": _calls, "data": _data, "best": _best, "counts": _counts, "at_least": _at_least, "only": _only,
    }  # fmt: skip
    bench.do({name: partial(work, bench, result) for name, work in works.items()}, parts, "records:")
    return result


def _index(bench: Bench, table: pa.Table, path: Path | None = None, **options: Any) -> TagMatch[int]:
    tm = TagMatch(path, device="cpu", threads=bench.options.threads, **options)
    (tm.put_many if options.get("data") else tm.add_subscriptions)(table)
    tm.consolidate(full=True)
    return tm


def _with_data(sets: pa.Table, tenants: int = 10) -> pa.Table:
    """Sets with distinct keys, and data."""
    numbers = np.arange(len(sets))
    emails = pa.array([f"user{number}@example.org" for number in range(len(sets))])
    return pa.table({
        "tags": sets["tags"], "key": pa.array(numbers.astype(np.uint64)),
        "tenant": pa.array(numbers % tenants).cast(pa.string()).dictionary_encode(),
        "priority": pa.array(numbers * 7919 % len(sets)), "email": emails,
    })  # fmt: skip


def _of_many_keys(bench: Bench) -> tuple[pa.Table, pa.Array]:
    """Sets of one of few tags, which so have many keys, and queries of two tags."""
    numbers = np.random.default_rng(bench.options.seed).integers(0, _FEW_TAGS, (bench.sets(), 1))
    asked = np.random.default_rng(2).integers(0, _FEW_TAGS, (min(bench.options.queries, 200), 2))

    return _with_data(pa.table({"tags": _lists(numbers)})), _lists(asked)


def _lists(tags: Any) -> pa.ListArray:
    """Lists of tags, by the numbers of these."""
    names = pa.array([f"tag {number}" for number in range(int(tags.max(initial=0)) + 1)])
    ends = np.arange(len(tags) + 1, dtype=np.int32) * tags.shape[1]
    return pa.ListArray.from_arrays(pa.array(ends), names.take(pa.array(tags.reshape(-1))))


def _in_turns(bench: Bench, works: Mapping[str, Callable[[], object]], *, swapped: bool = True) -> dict[str, Samples]:
    for work in works.values():  # compiles, and builds everything that is built once
        work()
    timed = {name: partial(seconds_of, work, process_time) for name, work in works.items()}
    return in_turns(timed, bench.options.rounds, swapped=swapped)


def _calls(bench: Bench, result: Result) -> None:
    """`get`, and `put` compared with `add_set`."""
    table = _with_data(bench.workload(bench.sets()).sets)
    rows = table.slice(0, _CALLS).to_pylist()
    data = [{name: row[name] for name in _DATA} for row in rows]
    keys = np.random.default_rng(1).integers(0, len(table), _CALLS).tolist()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tm = stack.enter_context(_index(bench, table, data=_DATA))
        seconds = _in_turns(bench, {"get": lambda: _dropped(tm.get, keys)})
        result.add("get", seconds["get"].times(1e6 / _CALLS), "µs", Target(5, at_most=True))
        stats = tm.stats()
        a_key = stats["directory_bytes"] / stats["keys"]
        result.add("key directory: bytes a key of a set", a_key, "bytes", Target(12, at_most=True))
        plain, with_records = (
            stack.enter_context(TagMatch(folder / name, device="cpu", threads=bench.options.threads, data=_DATA))
            for name in ("plain", "records")
        )
        works: dict[str, Callable[[], object]] = {
            "add_set": lambda: [plain.add_set(row["tags"], row["key"]) for row in rows],
            "consolidate after add_set": plain.consolidate,
            "put": lambda: [with_records.put(row["key"], row["tags"]) for row in rows],
            "consolidate after put": with_records.consolidate,
            "put with data": lambda: [
                with_records.put(row["key"], row["tags"], data=own) for row, own in zip(rows, data, strict=True)
            ],
            "consolidate after put with data": with_records.consolidate,
        }
        seconds = _in_turns(bench, works, swapped=False)
    for name in works:
        result.add(name, seconds[name].times(1e6 / _CALLS), "µs a change")
    result.add("put: rate of add_set", seconds["add_set"].ratios(seconds["put"]), "times", Target(0.8))
    result.add("put with data: rate of add_set", seconds["add_set"].ratios(seconds["put with data"]), "times")


def _dropped(get: Callable[[int], object], keys: list[int]) -> None:
    """Get records one by one: to keep them all takes the collector of garbage a sixth of the time."""
    for key in keys:
        get(key)


def _data(bench: Bench, result: Result) -> None:
    """What columns of data cost queries that do not ask for them."""
    workload = bench.workload(bench.sets())
    table = _with_data(workload.sets)
    queries = workload.queries[: bench.options.queries]
    plain, with_data = _index(bench, table.select(["tags", "key"])), _index(bench, table, data=_DATA)
    with plain, with_data:
        works = {"plain": partial(plain.match_many, queries), "data": partial(with_data.match_many, queries)}
        _same(result, "match_many with columns of data", works["data"]().to_pylist(), works["plain"]().to_pylist())
        seconds = _in_turns(bench, works)
    result.add(
        "match_many with columns of data: rate without", seconds["plain"].ratios(seconds["data"]), "times", Target(0.95)
    )


def _best(bench: Bench, result: Result) -> None:
    """The best keys, compared with `match_many` and sorting, of answers with many keys."""
    table, queries = _of_many_keys(bench)
    priorities = table["priority"].to_numpy()
    with _index(bench, table, data=_DATA) as tm:

        def sorted_answers() -> list[Any]:
            answers = tm.match_many(queries)
            return [_first(keys.values.to_numpy(), priorities) for keys in answers]

        ask = partial(tm.match_best, queries, limit=_LIMIT, order_by="priority desc")
        _same(result, "match_best", ask().to_pylist(), [each.tolist() for each in sorted_answers()])
        keys = len(tm.match_many(queries).flatten()) / len(queries)
        seconds = _in_turns(bench, {"sorted": sorted_answers, "best": ask})
    result.add("answers of many keys: keys", keys, "keys")
    result.add(
        "match_best: rate of match_many and sorting", seconds["sorted"].ratios(seconds["best"]), "times", Target(5)
    )


def _first(keys: Any, priorities: Any) -> Any:
    unique = np.unique(keys)
    return unique[np.argsort(-priorities[unique], kind="stable")[:_LIMIT]]


def _counts(bench: Bench, result: Result) -> None:
    """Counts, and whether there is a key, compared with keys, of answers with many keys; of both layouts."""
    rng = np.random.default_rng(3)
    asked = _lists(np.stack([rng.permutation(_WIDE)[: _WIDE // 2] for _ in range(min(bench.options.queries, 50))]))
    wide = _with_data(pa.table({"tags": _lists(rng.integers(0, _WIDE, (bench.sets(), 3)))}))
    for name, layout, (table, queries) in (
        ("", "rarest", _of_many_keys(bench)),
        (", a key a set", "rarest", (wide, asked)),
        (", a key a set, balanced", "balanced", (wide.slice(0, bench.sets() // 20), asked)),
    ):
        with _index(bench, table, data=_DATA, layout=layout) as tm:
            works = {
                "keys": partial(tm.match_many, queries),
                "counts": partial(tm.match_counts, queries),
                "exists": partial(tm.match_exists_many, queries),
            }
            found, due = works["counts"]().to_pylist(), [len(keys) for keys in works["keys"]()]
            _same(result, f"match_counts{name}", [[count] for count in found], [[count] for count in due])
            exist = [[int(each)] for each in works["exists"]().to_pylist()]
            _same(result, f"match_exists_many{name}", exist, [[int(count > 0)] for count in due])
            seconds = _in_turns(bench, works)
        if name:
            result.add(f"answers of many keys{name}: keys", sum(due) / len(due), "keys")
        ratio, goal = seconds["keys"].ratios(seconds["counts"]), None if layout == "balanced" else Target(3)
        result.add(f"match_counts{name}: rate of match_many", ratio, "times", goal)
        ratio = seconds["counts"].ratios(seconds["exists"])
        result.add(f"match_exists_many{name}: rate of match_counts", ratio, "times", Target(3 if name else 1))


def _at_least(bench: Bench, result: Result) -> None:
    """`at least 2 of` four tags, compared with sets of three of these: it is found by three."""
    rng = np.random.default_rng(bench.options.seed)
    count, names = max(bench.sets() // 10, 1), [f"tag {number}" for number in range(_TAGS)]
    chosen = [rng.choice(_TAGS, _OF, replace=False) for _ in range(count)]
    queries = [[names[number] for number in rng.choice(_TAGS, 10, replace=False)] for _ in range(1_000)]
    where = ["at least 2 of tags {" + ", ".join(f'"{names[number]}"' for number in each) + "}" for each in chosen]
    keys = pa.array(np.arange(count, dtype=np.uint64))
    tags = [[names[number] for number in each[: _OF - 1]] for each in chosen]
    alone = pa.table({"tags": tags, "key": keys})
    with _index(bench, pa.table({"key": keys, "where": where})) as tm, _index(bench, alone) as plain:
        asked = [frozenset(query) for query in queries[:_CHECKED]]
        own = [frozenset(names[number] for number in each) for each in chosen]
        due = [[key for key, each in enumerate(own) if len(each & query) >= 2] for query in asked]
        found = tm.match_many(queries[:_CHECKED]).to_pylist()
        _same(result, "at least 2 of 4 tags", [sorted(each) for each in found], due)
        works = {"at least": partial(tm.match_many, queries), "plain": partial(plain.match_many, queries)}
        seconds = _in_turns(bench, works)
    result.add(
        "at least 2 of 4 tags: time of plain sets",
        seconds["at least"].ratios(seconds["plain"]),
        "times",
        Target(2, at_most=True),
    )


def _only(bench: Bench, result: Result) -> None:
    """`only=` compared with an index that has no other keys, by the share of keys that are asked for."""
    workload = bench.workload(bench.sets())
    queries = workload.queries[: bench.options.queries]
    singles = queries[:_CALLS].to_pylist()
    few_sets, asked = _of_many_keys(bench)
    for tenants in _TENANTS:
        for name, sets, many in (("", workload.sets, queries), (", answers of many keys", few_sets, asked)):
            table = _with_data(sets, tenants)
            only = 'tenant = "1"'
            own = table.filter(pc.equal(table["tenant"].cast(pa.string()), "1"))
            where = f"only 1 of {tenants} keys{name}"
            with _index(bench, table, data=_DATA) as tm, _index(bench, own, data=_DATA) as alone:
                works = {"only": partial(tm.match_many, many, only=only), "alone": partial(alone.match_many, many)}
                first = seconds_of(works["only"], process_time)
                given, due = ([sorted(each) for each in work().to_pylist()] for work in (works["only"], works["alone"]))
                _same(result, where, given, due)
                seconds = _in_turns(bench, works)
                if not name:  # by themselves: after many messages, the first of the two has cold caches
                    singly = {
                        "only, one by one": partial(_one_by_one, tm, singles, only=only),
                        "alone, one by one": partial(_one_by_one, alone, singles),
                    }
                    seconds |= _in_turns(bench, singly)
            result.add(f"{where}: first call", first, "s")
            for form in ("", ", one by one")[: 1 if name else 2]:
                ratio = seconds[f"alone{form}"].ratios(seconds[f"only{form}"])
                result.add(f"{where}{form}: rate of an index of only these", ratio, "times", Target(0.9))


def _one_by_one(tm: TagMatch[int], queries: list[list[str]], **options: Any) -> list[list[int]]:
    return [tm.match(query, **options) for query in queries]


def _same(result: Result, what: str, found: list[list[int]], due: list[list[int]]) -> None:
    kind = pa.list_(pa.uint64())
    result.compare(what, "tagmatch", pa.array(found, kind), pa.array(due, kind))
