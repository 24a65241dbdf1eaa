"""Sets with constraints on the device, with others: by itself and by the CPU, with the oracle of all constraints."""

import random
from typing import Any, get_args

import pytest
from support import constrained
from support.constrained import *  # noqa: F403
from support.constrained import Message, answers, either
from support.failing_devices import ShortOfMemory
from support.simulator import SIMULATED

import tagmatch.pipeline.devices
from tagmatch import CudaOptions, TagMatch
from tagmatch.pipeline.cuda import device as cuda_device
from tagmatch.pipeline.cuda import filters, pairs
from tagmatch.pipeline.cuda import matcher as cuda_matcher
from tagmatch.pipeline.filters import trie
from tagmatch.pipeline.filters.index import Path

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]


@pytest.fixture(scope="module")
def device() -> str:
    return "cuda"


def with_sets(wheres: Any, path: Path, **options: Any) -> TagMatch[int]:
    return constrained.with_sets(wheres, path, "cuda", **options)


def on_cuda(tm: TagMatch[int]) -> bool:
    return constrained.all_by(tm, "cuda")


def test_more_tokens_than_the_trie_is_deep(monkeypatch: pytest.MonkeyPatch, layout: Any) -> None:
    """Sets that begin with the same tokens, likely last: one ends at every depth, and some differ only beyond it."""
    monkeypatch.setattr(trie, "_LEAF", 1)
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
@pytest.mark.parametrize("sets", [1, 2, 3, pytest.param(150, marks=pytest.mark.slow)])
def test_sets_that_no_token_leads_to(layout: Any, path: Path, sets: int) -> None:
    wheres = [([], f"not p between {key} and {key + 10}") for key in range(sets)]
    with with_sets([*wheres, ([], None), (["t"], "p > 5")], path, layout=layout) as tm:
        messages: list[Message] = [([], {}), (["t"], {"p": [sets]}), ([], {"p": [0, 5]}), (["t"], {"q": [1]})]
        for (tags, given), found in zip(messages, answers(tm, messages), strict=True):
            values = given.get("p", [])
            wanted = [key for key in range(sets) if not any(key <= value <= key + 10 for value in values)]
            assert found == [*wanted, sets, *([sets + 1] if tags and any(value > 5 for value in values) else [])]
        assert on_cuda(tm)


@pytest.mark.parametrize("at_once", [1, 3])
def test_messages_come_in_parts_where_sets_ask_for_many_attributes(
    monkeypatch: pytest.MonkeyPatch, layout: Any, at_once: int
) -> None:
    names = [f"a{number}" for number in range(30)]
    monkeypatch.setattr(filters, "_BUCKETS", at_once * len(names))
    sets: list[tuple[list[str], str | None]] = [([], f"{name} > 3") for name in names]
    with with_sets([*sets, ([], f"not {names[0]} > 3")], "lines", layout=layout) as tm:
        messages: list[Message] = [([], {name: 5, names[0]: [1, 2], "other": 9}) for name in names[1:9]]
        assert answers(tm, messages) == [[number, len(names)] for number in range(1, 9)]
        assert on_cuda(tm)


#: Also sets without constraints
every = pytest.mark.parametrize("path", [None, *get_args(Path)])


def ladder(count: int, path: Path | None) -> list[tuple[list[str], str | None]]:
    """Sets whose first `up_to` finds; of those with constraints some have none."""
    return [([f"t{key}"], None) if path is None or key % 3 == 0 else ([], f"p > {key}") for key in range(count)]


def up_to(last: int) -> Message:
    return [f"t{key}" for key in range(last)], {"p": last}


@every
@pytest.mark.parametrize("found", [7, 8, 9, 80])
def test_room_for_eight_results(monkeypatch: pytest.MonkeyPatch, layout: Any, path: Path | None, found: int) -> None:
    """Less, exactly full, one too many, ten times too many, which is seen."""
    asked = []
    ask = pairs.Room.ask
    monkeypatch.setattr(cuda_matcher, "_FIRST_ROOM", 8)
    monkeypatch.setattr(cuda_device, "_roomy", lambda count: max(1, count))
    with with_sets(ladder(found, path), path or "trie", layout=layout) as tm:
        monkeypatch.setattr(pairs.Room, "ask", lambda room, count: (asked.append(count), ask(room, count)))
        for _ in range(2):
            assert answers(tm, [up_to(found)]) == [list(range(found))]
        assert asked == ([found] if found > 8 else [])
        assert answers(tm, [([], {}), up_to(found), ([], {})]) == [[], list(range(found)), []]
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


@every
def test_packets_with_too_many_results_are_halved(
    monkeypatch: pytest.MonkeyPatch, layout: Any, path: Path | None
) -> None:
    monkeypatch.setattr(cuda_matcher, "_FIRST_ROOM", 2)
    subsets = [[f"t{bit}" for bit in range(5) if key >> bit & 1] for key in range(32)]
    sets = [(tags, None) if path is None else ([], f"p > {key}") for key, tags in enumerate(subsets)]
    with with_sets(sets, path or "trie", layout=layout) as tm:
        short = ShortOfMemory(monkeypatch, 60)
        monkeypatch.setattr(cuda_device, "_roomy", lambda count: max(1, count))
        asked = (31, 7, 31, 0, 12, 31, 29)
        assert answers(tm, [(subsets[value], {"p": value}) for value in asked]) == [
            [key for key in range(32) if (key & ~value == 0 if path is None else key < value)] for value in asked
        ]
        assert short.refused
        assert on_cuda(tm)


@every
@pytest.mark.parametrize("placement", ["replicate", "split"])
def test_several_devices(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random, layout: Any, path: Path | None, placement: Any
) -> None:
    """Here they are one, three times; each has all sets, or some."""
    monkeypatch.setattr(tagmatch.pipeline.devices, "_chosen", lambda _: [0, 0, 0])
    sets = ladder(40, path)
    asked = [rng.randrange(41) for _ in range(6)]
    cuda = CudaOptions(placement=placement)
    with with_sets(sets, path or "trie", layout=layout, cuda=cuda, max_partition_size=3) as tm:
        assert tm.stats()["devices"] == ["cuda:0"] * 3
        for _ in range(3):
            assert answers(tm, list(map(up_to, asked))) == [list(range(last)) for last in asked]
        tm.remove_set(sets[4][0], 4, where=sets[4][1])
        tm.consolidate()
        wanted = [[key for key in range(last) if key != 4] for last in asked]
        assert answers(tm, list(map(up_to, asked))) == wanted
        tags, values = up_to(asked[0])
        explained = tm.explain(tags, attributes=values)
        assert sorted(key for _, keys in explained for key in keys) == wanted[0]
        assert on_cuda(tm)


def test_computed_tests_beside_the_device(layout: Any) -> None:
    """The CPU finds their sets, and the device the others."""
    wheres = [
        "price <= budget",
        'name like "a_b%"',
        'not name matches "c$"',
        "at least 2 of {price < budget, price = 1}",
    ]
    with TagMatch(layout=layout, device="cuda") as tm:
        tm.add_sets([["t"], [], ["t"], [], ["t"], []], range(6), where=[*wheres, None, "price < 3"])
        tm.consolidate()
        messages: list[Message] = [
            (["t"], {"price": 1, "budget": 2.5, "name": "axbc"}),
            ([], {"price": [4, 5], "budget": 4}),
            (["t"], {"name": ["abb", "c!"]}),
        ]
        assert answers(tm, messages) == [[0, 1, 3, 4, 5], [], [1, 2, 4]]
