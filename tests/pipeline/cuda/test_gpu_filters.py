"""Sets with constraints on the device, beside others: by itself and by the CPU, with the oracle of all constraints."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.cuda.cudadrv.driver import CudaAPIError
from support.conditions import Message as ConditionMessage
from support.conditions import in_tables
from support.constrained import FILTERS, MESSAGES, expected_keys, expression_of
from support.paths import all_in
from support.simulator import SIMULATED

import tagmatch.pipeline.devices
from tagmatch import CudaOptions, DeviceError, DeviceWarning, TagMatch
from tagmatch.model.filters.values import attribute_tags
from tagmatch.pipeline.cuda import lines, memory, pairs
from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.cuda.support import on_device
from tagmatch.pipeline.filters import index, presence, trie
from tagmatch.pipeline.filters.index import Path

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

TIMEOUT = 60
MESSAGES_OF_A_TABLE = 200
OUT_OF_MEMORY, LAUNCH_FAILED = 2, 719

Message = tuple[list[str], Mapping[str, Any]]


class InjectedCudaError(CudaAPIError):
    """As CUDA's own; the simulator's class takes no code."""

    def __init__(self, code: int) -> None:
        Exception.__init__(self, f"[{code}] injected")
        self.code, self.msg = code, "injected"


InjectedCudaError.__module__ = CudaAPIError.__module__


#: Whatever sets ask for, they are all in the trie, or all in lines
either = pytest.mark.parametrize("path", get_args(Path))


def with_sets(wheres: Sequence[tuple[list[str], str | None]], path: Path, **options: Any) -> TagMatch[int]:
    """An index of these sets, whose keys are their numbers."""
    tm: TagMatch[int] = TagMatch(**{"device": "cuda", "threads": 2} | options)
    for key, (tags, where) in enumerate(wheres):
        tm.add_set(tags, key, where=where)
    with all_in(path):
        tm.consolidate()
    stats = tm.stats()
    assert stats["device"] == "cuda"
    assert stats["with_conditions"][path] == sum(stats["with_conditions"].values())
    return tm


def answers(tm: TagMatch[int], messages: Sequence[Message]) -> list[list[int]]:
    queries = [[*tags, *attribute_tags(values)] for tags, values in messages]
    return [sorted(keys) for keys in tm.match_many(queries).to_pylist()]


def on_cuda(tm: TagMatch[int]) -> bool:
    """Whether the device has matched all packets so far."""
    return tm.stats()["matched_by"]["cpu"] == 0 < tm.stats()["matched_by"]["cuda"]


def test_constraints_beside_tags(engine: dict[str, Any]) -> None:
    with TagMatch(**engine) as tm:
        tm.add_set(["a"], 1)
        tm.add_set([], 2, where="price < 10")
        tm.add_set(["a"], 3, where='price < 10 and not city = "Rome"')
        tm.add_set(["b"], 4)
        tm.add_set(["a", "b"], 5, where="price >= 10 or exists(city)")
        tm.consolidate()
        tm.add_set(["a"], 6, where='city prefix "R"')
        tm.remove_set(["b"], 4)
        tm.consolidate()
        asked: list[tuple[list[str], dict[str, Any], list[int]]] = [
            (["a"], {}, [1]),
            (["a"], {"price": 9.5}, [1, 2, 3]),
            (["a", "b"], {"price": 9.5, "city": "Rome"}, [1, 2, 5, 6]),
            (["b"], {"price": 10}, []),
            ([], {"price": -1}, [2]),
        ]
        for tags, attributes, keys in asked:
            assert sorted(tm.match(tags, attributes=attributes)) == keys
            assert tm.match_unique(tags, attributes=attributes) == set(keys)
            assert sorted(key for _, found in tm.explain(tags, attributes=attributes) for key in found) == keys
            assert sorted(tm.submit(tags, attributes=attributes).result(TIMEOUT)) == keys
        assert on_cuda(tm)


@either
@given(filters=st.lists(FILTERS, min_size=1, max_size=30), messages=st.lists(MESSAGES, min_size=1, max_size=8))
def test_any_filters(layout: Any, path: Path, filters: list[Any], messages: list[Any]) -> None:
    wheres = [(tags, expression_of(parts)) for tags, parts in filters]
    wanted = [expected_keys(filters, tags, values) for tags, values in messages]
    with with_sets(wheres, path, layout=layout) as tm:
        assert answers(tm, messages) == wanted
        queries = [[*tags, *attribute_tags(values)] for tags, values in messages]
        assert tm.match_many(queries, unique=True).to_pylist() == wanted
        dictionaries = pa.array(queries, pa.list_(pa.dictionary(pa.int32(), pa.string())))
        assert [sorted(keys) for keys in tm.match_many(dictionaries).to_pylist()] == wanted
        for numbers, table in in_tables([ConditionMessage(tags, dict(values)) for tags, values in messages]):
            # The rows begin within a byte of the columns' bits
            found = tm.match_many(pa.concat_tables([table, table]).combine_chunks()[1:]).to_pylist()
            assert [sorted(keys) for keys in found] == [wanted[i] for i in (numbers + numbers)[1:]]
        for (tags, values), keys in list(zip(messages, wanted, strict=True))[:2]:
            assert sorted(tm.match(tags, attributes=values)) == keys
            assert sorted(key for _, found in tm.explain(tags, attributes=values) for key in found) == keys
        assert on_cuda(tm)


#: Constants whose doubles have zeros below, or not, or that are no doubles; and values beside them
CONSTANTS: dict[str, list[Any]] = {
    "halves": [-3, 0, 1, 7.5, 1024],
    "doubles": [-0.1, 0.0, 0.1, 1e-300, math.inf],
    "inexact": [2**53 + 1, 2**53 - 1, -(2**63), 2**63 - 1, 0.1],
}


@either
@pytest.mark.parametrize("constants", CONSTANTS)
def test_columns_of_numbers(path: Path, constants: str, seed: int) -> None:
    rng, known = random.Random(seed), CONSTANTS[constants]
    wheres = [f"{name} {op} {value!r}" for name in "xy" for op in ("<", "<=", "=", ">") for value in known[:4]]
    wheres += ["sold = true", "not sold = true", "not exists(x)", "exists(z)", 'name prefix "b" and x >= 0']
    values = [*known, *(-value for value in known if value > -(2**63)), math.nan, 0, 3]
    integers = [value for value in values if isinstance(value, int)]

    def some(of: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([rng.choice([None, rng.choice(of)]) for _ in range(MESSAGES_OF_A_TABLE)], kind)

    table = pa.table({
        "x": some([float(value) for value in values], pa.float64()),
        "y": some(integers, pa.int64()),
        "z": some([[1, 2], []], pa.list_(pa.int64())),
        "sold": some([True, False], pa.bool_()),
        "name": some(["a", "b", "bc"], pa.string()),
        "unasked": some(integers, pa.int64()),
    })  # fmt: skip
    with with_sets([([], where.replace("inf", "1e400")) for where in wheres], path) as tm:
        with TagMatch(device="cpu") as other:
            for key, where in enumerate(wheres):
                other.add_set([], key, where=where.replace("inf", "1e400"))
            other.consolidate()
            wanted = other.match_many(table, unique=True)
        assert any(wanted.to_pylist())
        assert tm.match_many(table, unique=True) == wanted
        assert tm.match_many(table[13:77], unique=True) == wanted[13:77]
        assert on_cuda(tm)


def ranges_of(rng: random.Random, names: str) -> tuple[list[str], list[tuple[str, int, int]]]:
    ranges = []
    for name in rng.choices(names, k=rng.randint(1, 4)):  # perhaps twice
        low = rng.randrange(100)
        ranges.append((name, low, low + rng.choice([0, 3, 10, 40, 100, 100])))
    return rng.sample(["t1", "t2", "t3"], rng.choice([0, 0, 1])), ranges


def where_of(ranges: list[tuple[str, int, int]]) -> str:
    return " and ".join(f"{name} between {low} and {high}" for name, low, high in ranges)


@pytest.mark.parametrize(("path", "leaf"), [("lines", 64), ("trie", 64), ("trie", 1)])
def test_segments_and_deletions(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: Any, path: Path, leaf: int
) -> None:
    """With leaves of one set, the trie has inner nodes."""
    monkeypatch.setattr(trie, "_LEAF", leaf)
    monkeypatch.setattr(trie, "_LEAST", 1 if leaf == 1 else trie._LEAST)
    count = 250 if SIMULATED else 5_000
    filters = [ranges_of(rng, "abcd") for _ in range(count)]
    removed = set(rng.sample(range(count), count // 10))
    messages: list[Message] = [
        (rng.sample(["t1", "t2", "t3"], rng.randint(0, 2)), {name: rng.randrange(120) for name in names})
        for names in (rng.sample("abcd", rng.randint(0, 4)) for _ in range(8 if SIMULATED else 500))
    ]
    with all_in(path), TagMatch(layout=layout, device="cuda", threads=2) as tm:
        for key, (tags, ranges) in enumerate(filters):
            tm.add_set(tags, key, where=where_of(ranges))
            if key == count * 3 // 4:
                tm.consolidate()
        for key in removed:
            tm.remove_set(filters[key][0], key, where=where_of(filters[key][1]))
        tm.consolidate()
        found = answers(tm, messages)
        assert on_cuda(tm)
    assert found == [
        [
            key
            for key, (tags, ranges) in enumerate(filters)
            if key not in removed
            and set(tags) <= set(has)
            and all(name in values and low <= values[name] <= high for name, low, high in ranges)
        ]
        for has, values in messages
    ]
    assert sum(map(len, found)) > 0


def test_more_tokens_than_the_trie_is_deep(monkeypatch: pytest.MonkeyPatch, layout: Any) -> None:
    """Sets that begin with the same tokens, likely last: one ends at every depth, and some differ only beyond it."""
    monkeypatch.setattr(trie, "_LEAF", 1)
    monkeypatch.setattr(trie, "_LEAST", 1)
    tags = [f"t{number:02}" for number in range(12)]
    # Prefixes, each once more with one tag left out: those before it stay the same
    wanted = [tags[:size] for size in range(1, 13)] + [[*tags[:at], *tags[at + 1 :]] for at in range(12)]
    with with_sets([(each, "p < 5") for each in wanted], "trie", layout=layout) as tm:
        messages: list[Message] = [(tags, {"p": 4}), (tags, {"p": 5}), (tags[1:], {"p": 1}), (tags[:9], {"p": 0})]
        assert answers(tm, messages) == [
            [key for key, each in enumerate(wanted) if values["p"] < 5 and set(each) <= set(has)]
            for has, values in messages
        ]
        assert on_cuda(tm)


@either
@pytest.mark.parametrize("sets", [1, 2, 3, 150])
def test_sets_that_no_token_leads_to(layout: Any, path: Path, sets: int) -> None:
    wheres = [([], f"not p between {key} and {key + 10}") for key in range(sets)]
    with with_sets([*wheres, ([], None), (["t"], "p > 5")], path, layout=layout) as tm:
        messages: list[Message] = [([], {}), (["t"], {"p": sets}), ([], {"p": [0, 5]}), (["t"], {"q": 1})]
        assert answers(tm, messages) == [
            [
                *(key for key in range(sets) if not any(key <= value <= key + 10 for value in values)),
                sets,
                *([sets + 1] if "t" in has and any(value > 5 for value in values) else []),
            ]
            for has, given in messages
            for values in [given["p"] if isinstance(given.get("p"), list) else [given["p"]] if "p" in given else []]
        ]
        assert on_cuda(tm)


@pytest.mark.parametrize("at_once", [1, 3])
def test_messages_come_in_parts_where_sets_ask_for_many_attributes(
    monkeypatch: pytest.MonkeyPatch, layout: Any, at_once: int
) -> None:
    names = [f"a{number}" for number in range(30)]
    monkeypatch.setattr(lines, "_BUCKETS", at_once * len(names))
    sets: list[tuple[list[str], str | None]] = [([], f"{name} > 3") for name in names]
    with with_sets([*sets, ([], f"not {names[0]} > 3")], "lines", layout=layout) as tm:
        messages: list[Message] = [([], {name: 5, names[0]: [1, 2], "other": 9}) for name in names[1:9]]
        assert answers(tm, messages) == [[number, len(names)] for number in range(1, 9)]
        assert on_cuda(tm)


@either
def test_several_values(layout: Any, path: Path) -> None:
    with with_sets([([], f"p = {key}") for key in range(10)], path, layout=layout) as tm:
        asked = [[2, 7], [7, 2], [5, 5], [9, 0, 4], [10, -1], []]
        assert answers(tm, [([], {"p": values}) for values in asked]) == [
            sorted({*values} & {*range(10)}) for values in asked
        ]
        assert on_cuda(tm)


def test_sets_of_both_paths(monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: Any) -> None:
    """Devices and the CPU beside them have the same ones in lines, as messages have shown; also several devices."""
    monkeypatch.setattr(index, "_FEW", 10)
    monkeypatch.setattr(presence, "_ENOUGH", 4)
    monkeypatch.setattr(tagmatch.pipeline.devices, "_chosen", lambda _: [0, 0])
    sets = [([], f"p between {key} and {key + 20} and q > {key % 7}") for key in range(20)]
    sets += [([], f"r = {key} and p > 3") for key in range(10)]
    sets += [([], "exists(z)"), ([], "z != 1")]  # all messages have it, which no set can tell
    messages: list[Message] = [([], {"p": rng.randrange(30), "q": rng.randrange(9), "z": 4}) for _ in range(19)]
    messages += [([], {"r": rng.randrange(10), "p": rng.randrange(6), "z": 1})]

    def wanted(values: Mapping[str, int]) -> list[int]:
        found = [key for key in range(20) if key <= values["p"] <= key + 20 and values.get("q", -1) > key % 7]
        found += [20 + key for key in range(10) if values.get("r") == key and values["p"] > 3]
        return [*found, 30, *([31] if values["z"] != 1 else [])]

    cuda = CudaOptions(placement="split", fewest_queries=2)
    with TagMatch(layout=layout, device="cuda", threads=2, cuda=cuda) as tm:
        for key, (tags, where) in enumerate(sets):
            tm.add_set(tags, key, where=where)
        tm.consolidate()
        before = tm.stats()["with_conditions"]["lines"]
        assert answers(tm, messages) == [wanted(values) for _, values in messages]
        tm.add_set([], len(sets), where="r = 99")
        tm.consolidate(full=True)
        counts = tm.stats()["with_conditions"]
        assert sum(counts.values()) == len(sets) + 1
        assert counts["lines"] == before + 2
        for times in range(3):
            assert answers(tm, messages[times:]) == [wanted(values) for _, values in messages[times:]]
        paths = {}
        for _, values in [*messages, *(([], {"p": 9 + key, "q": 9, "r": key, "z": 2}) for key in range(20))]:
            found = tm.explain([], attributes=values)
            assert sorted(key for _, keys in found for key in keys) == wanted(values)
            paths |= {key: next(iter(asked)).path for asked, keys in found for key in keys}
        assert {path: list(paths.values()).count(path) for path in get_args(Path)} == counts | {
            "trie": counts["trie"] - 1
        }
        assert all(paths[key] == "trie" for key in range(20, 30))


# -- results that do not fit -------------------------------------------------------------------------------------------


@either
@pytest.mark.parametrize("found", [7, 8, 9, 80])
def test_room_for_eight_results(monkeypatch: pytest.MonkeyPatch, layout: Any, path: Path, found: int) -> None:
    """Less, exactly full, one too many, ten times too many, of which some have no constraint."""
    asked = []
    ask = pairs.Room.ask
    monkeypatch.setattr(cuda_matcher, "_FIRST_ROOM", 8)
    monkeypatch.setattr(memory, "_roomy", lambda count: max(1, count))
    sets: list[tuple[list[str], str | None]] = [
        ([], f"p > {key}") if key % 3 else ([f"t{key}"], None) for key in range(found)
    ]
    with with_sets(sets, path, layout=layout) as tm:
        monkeypatch.setattr(pairs.Room, "ask", lambda room, count: (asked.append(count), ask(room, count)))
        everything = [f"t{key}" for key in range(found)]
        for _ in range(2):
            assert answers(tm, [(everything, {"p": found})]) == [list(range(found))]
        assert asked == ([found] if found > 8 else [])
        assert on_cuda(tm)


@either
def test_more_candidates_than_may_wait(layout: Any, path: Path) -> None:
    """Of which half are turned away; in the simulator, two may wait."""
    count = 40 if SIMULATED else 20_000
    sets = [([], f"p = 1 and q >= {key}") for key in range(count)]
    with with_sets(sets, path, layout=layout) as tm:
        half = count // 2
        assert answers(tm, [([], {"p": 1, "q": half}), ([], {"p": [2, 1], "q": -1})]) == [list(range(half + 1)), []]
        assert on_cuda(tm)


@either
def test_packets_with_too_many_results_are_halved(monkeypatch: pytest.MonkeyPatch, layout: Any, path: Path) -> None:
    refused = []
    give = memory.Workspace.device
    count = 30
    monkeypatch.setattr(cuda_matcher, "_FIRST_ROOM", 2)
    with with_sets([([], f"p > {key}") for key in range(count)], path, layout=layout) as tm:

        def device(workspace: memory.Workspace, name: str, dtype: Any, wanted: int) -> Any:
            if wanted > 60:
                refused.append(name)
                raise InjectedCudaError(OUT_OF_MEMORY)
            return give(workspace, name, dtype, wanted)

        monkeypatch.setattr(memory, "_roomy", lambda count: max(1, count))
        monkeypatch.setattr(memory.Workspace, "device", device)
        messages: list[Message] = [([], {"p": value}) for value in (30, 7, 30, 0, 12, 30, 29)]
        assert answers(tm, messages) == [list(range(values["p"])) for _, values in messages]
        assert refused
        assert on_cuda(tm)


# -- where it is matched -----------------------------------------------------------------------------------------------


@either
def test_small_packets_are_the_cpus(layout: Any, path: Path) -> None:
    with with_sets([(["a"], None), ([], "p < 5")], path, layout=layout, cuda=CudaOptions(fewest_queries=4)) as tm:
        messages: list[Message] = [(["a"], {"p": value}) for value in range(2, 8)]
        wanted = [[0, 1] if value < 5 else [0] for value in range(2, 8)]
        for asked, expected in ((3, {"cuda": 0, "cpu": 3}), (4, {"cuda": 4, "cpu": 3}), (6, {"cuda": 10, "cpu": 3})):
            assert answers(tm, messages[:asked]) == wanted[:asked]
            assert tm.stats()["matched_by"] == expected
        assert tm.match(["a"], attributes={"p": 9}) == [0]


@either
@pytest.mark.parametrize("placement", ["replicate", "split"])
def test_several_devices(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: Any, path: Path, placement: Any
) -> None:
    """Here they are one, three times; each has all sets, or some."""
    monkeypatch.setattr(tagmatch.pipeline.devices, "_chosen", lambda _: [0, 0, 0])
    filters = [ranges_of(rng, "ab") for _ in range(40)]
    sets = [(tags, where_of(ranges)) for tags, ranges in filters]
    messages: list[Message] = [(["t1"], {"a": rng.randrange(120), "b": rng.randrange(120)}) for _ in range(6)]
    wanted = [
        [
            key
            for key, (tags, ranges) in enumerate(filters)
            if set(tags) <= set(has) and all(low <= values[name] <= high for name, low, high in ranges)
        ]
        for has, values in messages
    ]
    with with_sets(sets, path, layout=layout, cuda=CudaOptions(placement=placement)) as tm:
        assert tm.stats()["devices"] == ["cuda:0"] * 3
        for _ in range(3):
            assert answers(tm, messages) == wanted
        tm.remove_set(sets[3][0], 3, where=sets[3][1])
        tm.consolidate()
        assert answers(tm, messages) == [[key for key in keys if key != 3] for keys in wanted]
        assert on_cuda(tm)


def test_a_device_that_fails(monkeypatch: pytest.MonkeyPatch, layout: Any) -> None:
    """What is on it fails; what comes later is answered by the CPU, constraints too."""
    with with_sets([(["a"], None), ([], "p < 5")], "trie", layout=layout) as tm:
        assert answers(tm, [(["a"], {"p": 1})]) == [[0, 1]]

        def fail(*_: Any) -> Any:
            raise InjectedCudaError(LAUNCH_FAILED)

        monkeypatch.setattr(cuda_matcher.CudaFilters, "launch", fail)
        with pytest.raises(DeviceError, match=r"CUDA device 0 has failed: .*injected"):
            answers(tm, [(["a"], {"p": 1})])
        assert answers(tm, [(["a"], {"p": 1}), (["a"], {"p": 6})]) == [[0, 1], [0]]
        assert sorted(tm.match(["a"], attributes={"p": 1})) == [0, 1]
        assert tm.stats()["device"] == "cpu"


def test_tables_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, layout: Any) -> None:
    def full(*_: Any) -> None:
        with on_device(0):
            raise InjectedCudaError(OUT_OF_MEMORY)

    monkeypatch.setattr(cuda_matcher, "CudaFilters", full)
    with TagMatch(layout=layout, device="cuda") as tm:
        tm.add_set(["a"], 0, where="p < 5")
        with pytest.warns(DeviceWarning, match="out of memory; .*; the CPU matches"):
            tm.consolidate()
        assert answers(tm, [(["a"], {"p": 1}), (["a"], {"p": 6})]) == [[0], []]
        assert tm.stats()["device"] == "cpu"
