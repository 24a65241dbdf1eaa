"""Sets with constraints, written as the tags that they are stored with, against plain Python on values."""

import random
import re

import pytest
from oracle import Not, Test, Tree
from support.agreement import index_of
from support.constrained import *  # noqa: F403
from support.constrained import answers, either, expected_keys, expression_of, with_sets

from tagmatch.pipeline.filters.index import Path


@pytest.fixture(scope="module")
def device() -> str:
    return "cpu"


@either
@pytest.mark.parametrize(
    "count",
    [
        1,
        pytest.param(513, marks=pytest.mark.slow),
        *(pytest.param(n, marks=pytest.mark.nightly) for n in (512, 1025)),
    ],
)
def test_blocks(path: Path, count: int, rng: random.Random) -> None:
    """Sets that nearly all ask for the same attributes, in ways of all kinds, and messages at the ends of intervals."""

    def drawn() -> list[Tree]:
        ends, known, more = sorted(rng.sample(range(200), 2)), rng.randrange(200), rng.randrange(1, 30)
        parts = [Test("a", "between", tuple(ends)), Test("b", "=", (rng.randrange(2),)), Test("c", "exists", ())]
        others = [
            *(Test(*each, (known,)) for each in (("a", ">="), ("d", "<"), ("d", "!="))), Test("a", "<", ("",)),
            Test("d", "in", (known, known + more)), Not(Test("e", "between", (known, known + more))),
            Not(Test("d", ">", (known,))),
        ]  # fmt: skip
        return [*parts, *rng.sample(others, rng.randrange(4))]

    filters = [([], drawn()) for _ in range(count)]
    wheres = [([], expression_of(parts)) for _, parts in filters]
    constants = {int(word) for _, where in wheres for word in re.findall(r"\d+", where)}
    near = [constant + by for constant in sorted(constants) for by in (-1, 0, 1)]
    messages = [
        ([], {name: rng.choices(near if name in "ade" else [0, 1, 1, 2], k=rng.choice([1, 1, 2, 3])) for name in names})
        for names in ("abc", "abcd", "abcde", "abce", "bcde", "acde", "abd", "", "e")
        for _ in range(40)
    ]
    wanted = [expected_keys(filters, *message) for message in messages]
    with with_sets(wheres, path, "cpu") as tm:
        assert answers(tm, messages) == wanted
        alone = [sorted(tm.match(tags, attributes=values)) for tags, values in messages[::40]]
    assert alone == wanted[::40]
    assert any(wanted) or count == 1


@pytest.mark.slow
@pytest.mark.parametrize("values_each", [1, 2])
def test_lines_say_all(values_each: int, rng: random.Random) -> None:
    """Where attributes have few constants, each has its bucket: nothing is left that verification turns away."""

    def drawn(name: str) -> Tree:
        kind = rng.choice(["=", ">=", "<", "!=", *(["not"] if values_each == 1 else [])])
        test = Test(name, "=" if kind == "not" else kind, (rng.randrange(10),))
        return Not(test) if kind == "not" else test  # "for none of the values" is more than lines say

    filters = [([], list(map(drawn, "abc"))) for _ in range(700)]
    messages = [
        ([], {name: rng.sample(range(-1, 11), values_each) for name in names})
        for names in ("abc", "ab", "c")
        for _ in range(200)  # more than the first batch of a packet has
    ]
    with with_sets([([], expression_of(parts)) for _, parts in filters], "lines", "cpu", threads=1) as tm:
        assert answers(tm, messages) == [expected_keys(filters, *message) for message in messages]
        assert tm.stats()["rejected"] == 0


def test_messages_teach_which_path() -> None:
    """Sets ask for one attribute of ten, but a thousand messages have all; then they have none."""
    count, names = 600, [f"p{number}" for number in range(10)]
    everything, nothing = dict.fromkeys(names, 500), {"other": 1}
    wanted = [key for key in range(count) if key <= 500]
    wheres = [f"{names[key % 10]} between {key} and {key + count}" for key in range(count)]
    with index_of([[]] * count, range(count), where=wheres, device="cpu", threads=1) as tm:

        def paths_after(messages: list[dict[str, int]]) -> dict[str, int]:
            found = answers(tm, [([], each) for each in messages])
            assert found == [wanted if each == everything else [] for each in messages]
            tm.add_set([], count, where=f"other = {len(messages) + 2}")
            tm.consolidate(full=True)
            paths: dict[str, int] = tm.stats()["with_conditions"]
            return paths

        assert tm.stats()["with_conditions"] == {"trie": count, "lines": 0}
        assert paths_after([everything] * 999) == {"trie": count + 1, "lines": 0}
        assert paths_after([everything]) == {"trie": 2, "lines": count}
        assert paths_after([]) == {"trie": 3, "lines": count}
        assert paths_after([nothing] * 9_000) == {"trie": count + 4, "lines": 0}
