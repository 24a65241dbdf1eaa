"""Sets with constraints, written as the tags that they are stored with, against plain Python on values."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from support.constrained import *  # noqa: F403
from support.constrained import COMPARISONS, NUMBERS, PATTERNS, TEXTS, VALUES, either, expression_of
from support.paths import all_in
from support.trees import Test, evaluate

from tagmatch import TagMatch
from tagmatch.model.filters.values import attribute_tags
from tagmatch.pipeline.filters.index import Path

Says = Callable[[Any], bool]


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu"


@either
def test_every_operator_and_value(path: Path) -> None:
    """All at once in one index, so that constants and patterns are beside all others."""
    trees = [Test("p", comparison, (known,)) for known in (*NUMBERS, *TEXTS) for comparison in COMPARISONS]
    trees += [Test("p", pattern, (text,)) for text in TEXTS for pattern in PATTERNS]
    with all_in(path), TagMatch(device="cpu", threads=2) as tm:
        tm.add_sets([[]] * len(trees), range(len(trees)), where=[expression_of([tree]) for tree in trees])
        tm.consolidate()
        found = tm.match_many([attribute_tags({"p": value}) for value in VALUES]).to_pylist()
        both = tm.match_many([attribute_tags({"p": [value, other]}) for value, other in pairwise(VALUES)]).to_pylist()
    expected = [{key for key, tree in enumerate(trees) if evaluate(tree, (), {"p": value})} for value in VALUES]
    assert [set(keys) for keys in found] == expected
    assert [set(keys) for keys in both] == [one | other for one, other in pairwise(expected)]


@either
@pytest.mark.parametrize("count", [1, 512, 513, *(pytest.param(n, marks=pytest.mark.nightly) for n in (511, 1025))])
def test_blocks(path: Path, count: int, rng: random.Random) -> None:
    """Sets that nearly all ask for the same attributes, in ways of all kinds, and messages at the ends of intervals."""

    def drawn() -> tuple[str, Callable[[Mapping[str, list[int]]], bool]]:
        low, high = sorted(rng.sample(range(200), 2))
        flag, other, step = rng.randrange(2), rng.randrange(200), rng.randrange(1, 30)
        texts = [f"a between {low} and {high}", f"b = {flag}", "exists(c)"]
        tests: list[tuple[str, Says]] = [
            ("a", lambda a: low <= a <= high),
            ("b", lambda b: b == flag),
            ("c", lambda _: True),
        ]
        more: list[tuple[str, str, Says, bool]] = [
            (f"a >= {other}", "a", lambda a: a >= other, False),
            ('a < ""', "a", lambda _: False, False),
            (f"d < {other}", "d", lambda d: d < other, False),
            (f"d != {other}", "d", lambda d: d != other, False),
            (f"d in {{{other}, {other + step}}}", "d", lambda d: d in (other, other + step), False),
            (f"not e between {other} and {other + step}", "e", lambda e: other <= e <= other + step, True),
            (f"not d > {other}", "d", lambda d: d > other, True),
        ]
        chosen = rng.sample(more, rng.randrange(4))
        texts += [text for text, *_ in chosen]

        def holds(values: Mapping[str, list[int]]) -> bool:
            return all(any(map(test, values.get(name, []))) for name, test in tests) and all(
                any(map(test, values.get(name, []))) != negated for _, name, test, negated in chosen
            )

        return " and ".join(texts), holds

    filters = [drawn() for _ in range(count)]
    constants = sorted({int(word) for text, _ in filters for word in re.findall(r"\d+", text)})
    near = [constant + by for constant in constants for by in (-1, 0, 1)]
    messages = [
        {name: rng.choices(near if name in "ade" else [0, 1, 1, 2], k=rng.choice([1, 1, 1, 2, 3])) for name in names}
        for names in ("abc", "abcd", "abcde", "abce", "bcde", "acde", "abd", "", "e")
        for _ in range(40)
    ]
    with all_in(path), TagMatch(device="cpu", threads=2) as tm:
        for key, (where, _) in enumerate(filters):
            tm.add_set([], key, where=where)
        tm.consolidate()
        found = tm.match_many([attribute_tags(values) for values in messages]).to_pylist()
        alone = [sorted(tm.match([], attributes=values)) for values in messages[::40]]
    wanted = [[key for key, (_, holds) in enumerate(filters) if holds(values)] for values in messages]
    assert [sorted(keys) for keys in found] == wanted
    assert alone == wanted[::40]
    assert any(wanted) or count == 1


@pytest.mark.parametrize("values_each", [1, 2])
def test_lines_say_all(values_each: int, rng: random.Random) -> None:
    """Where attributes have few constants, each has its bucket: nothing is left that verification turns away."""
    kinds: list[tuple[str, Callable[[int, int], bool]]] = [
        ("{0} = {1}", lambda value, known: value == known),
        ("{0} >= {1}", lambda value, known: value >= known),
        ("{0} < {1}", lambda value, known: value < known),
        ("{0} != {1}", lambda value, known: value != known),
        ("not {0} = {1}", lambda value, known: value != known),
    ]
    if values_each > 1:  # "for none of the values" is more than lines say
        kinds.pop()
    filters = [[(name, *rng.choice(kinds), rng.randrange(10)) for name in "abc"] for _ in range(700)]
    with all_in("lines"), TagMatch(device="cpu", threads=1) as tm:
        for key, parts in enumerate(filters):
            tm.add_set([], key, where=" and ".join(text.format(name, known) for name, text, _, known in parts))
        tm.consolidate()
        messages = [
            {name: rng.sample(range(-1, 11), values_each) for name in names}
            for names in ("abc", "ab", "c")
            for _ in range(100)
        ]
        found = tm.match_many([attribute_tags(values) for values in messages]).to_pylist()
        assert tm.stats()["rejected"] == 0
    assert [sorted(keys) for keys in found] == [
        [
            key
            for key, parts in enumerate(filters)
            if all(
                any(test(value, known) for value in values[name]) if name in values else text.startswith("not")
                for name, text, test, known in parts
            )
        ]
        for values in messages
    ]


def test_lines_of_sets_that_have_nothing_in_common() -> None:
    """No attribute has a column then, and all sets are verified for all messages."""
    count = 100
    with all_in("lines"), TagMatch(device="cpu", threads=1) as tm:
        for key in range(count):
            tm.add_set([], key, where=f"a{key} >= 1")
        tm.consolidate()
        messages = [{f"a{key}": key % 2, "a0": 1} for key in range(count)]
        wanted = [[0, key] if key % 2 else [0] for key in range(count)]
        found = tm.match_many([attribute_tags(values) for values in messages]).to_pylist()
        assert tm.stats()["rejected"] == count * count - sum(map(len, wanted))
    assert [sorted(keys) for keys in found] == wanted


def test_messages_teach_which_path() -> None:
    """Sets ask for one attribute of ten, but a thousand messages have all; then they have none."""
    count, names = 600, [f"p{number}" for number in range(10)]
    everything, nothing = attribute_tags(dict.fromkeys(names, 500)), attribute_tags({"other": 1})
    wanted = [key for key in range(count) if key <= 500]
    with TagMatch(device="cpu", threads=1) as tm:

        def paths_after(messages: list[list[str]]) -> dict[str, int]:
            found = tm.match_many(messages).to_pylist()
            assert [sorted(keys) for keys in found] == [wanted if tags == everything else [] for tags in messages]
            tm.add_set([], count, where=f"other = {len(messages) + 2}")
            tm.consolidate(full=True)
            paths: dict[str, int] = tm.stats()["with_conditions"]
            return paths

        for key in range(count):
            tm.add_set([], key, where=f"{names[key % 10]} between {key} and {key + count}")
        tm.consolidate()
        assert tm.stats()["with_conditions"] == {"trie": count, "lines": 0}
        assert paths_after([everything] * 999) == {"trie": count + 1, "lines": 0}
        assert paths_after([everything]) == {"trie": 2, "lines": count}
        assert paths_after([]) == {"trie": 3, "lines": count}
        assert paths_after([nothing] * 9_000) == {"trie": count + 4, "lines": 0}
