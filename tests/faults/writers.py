"""Several programs that write to an index at once: all that each one saves is there at the end, with its conditions."""

from __future__ import annotations

import functools
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from unittest.mock import patch

from faults.driver import Case, Length, Program, at_once
from oracle import holds_for
from support.conditions import Message
from support.moving_keys import FOR_ALL, condition_of, row_of, table_of

from tagmatch import IndexChangedError, IndexLockedError, TagMatch
from tagmatch.model.options import Durability, Layout
from tagmatch.partitioner.consolidation import FEW_SETS

_FILL = 300
_WRITERS = 3
_CHANGES_OF_AN_INDEX = 300
_WAIT_S = 0.001


def tags_of(key: int) -> list[str]:
    return [f"of {key}", f"shared {key % 7}", "all"]


def add_keys(path: Path, layout: str, keys: range, rng: random.Random) -> Counter[str]:
    """Add and save keys one after the other. Segments may be merged meanwhile."""
    counts, durability, few = Counter[str](), rng.choice([None, *get_args(Durability)]), rng.choice([0, 4, FEW_SETS])
    with (
        patch("tagmatch.partitioner.consolidation.FEW_SETS", few),
        TagMatch(path, layout=layout, threads=1, device="cpu", durability=durability) as tm,
    ):
        for key in keys:
            while True:
                try:
                    tm.add_set(tags_of(key), key, where=condition_of(key))
                    break
                except IndexLockedError:
                    counts["times that another one had changes staged"] += 1
                    time.sleep(_WAIT_S)
            while True:
                try:
                    tm.consolidate()
                    break
                except IndexChangedError:
                    counts["times that another one had saved"] += 1
                    tm.reload()
            counts["changes by several writers"] += 1
    return counts


def check_keys(path: Path, most: int) -> int:
    """See that an index has so many keys, each where its condition holds; returns how many have conditions."""
    tags = ["all", *(f"shared {i}" for i in range(7)), *(f"of {key}" for key in range(most))]
    messages = [Message(tags, attributes) for attributes in (FOR_ALL, {}, {"price": [7], "sold": True})]
    with TagMatch.open(path, threads=1, device="cpu") as tm:
        tm.check()
        found = [sorted(keys) for keys in tm.match_many(table_of(messages)).to_pylist()]
    lost = set(range(most)) - set(found[0])
    assert not lost, f"lost: {len(lost)} keys"
    for message, keys in zip(messages, found, strict=True):
        expected = [key for key in range(most) if holds_for(row_of(key, tags_of(key)), *message)]
        assert keys == expected, f"{len(keys)} keys of {len(expected)}"
    return len(found[0]) - len(found[1])


def write_at_once(layout: str, changes: int, folder: Path, rng: random.Random) -> Counter[str]:
    """Each key of each writer is there at the end."""
    path, parts = folder / "index", [range(number, changes, _WRITERS) for number in range(_WRITERS)]
    counts = at_once(*(functools.partial(add_keys, path, layout, keys, random.Random(rng.random())) for keys in parts))
    counts["found by their conditions"] = check_keys(path, changes)
    assert counts["found by their conditions"] >= changes // 2
    return counts


def _cases(rounds: int, folder: Path, _: random.Random) -> Iterator[Case]:
    """Have several programs make so many changes to an index of each layout, together."""
    for number, each in enumerate(get_args(Layout)):
        # Loads the kernels, which the programs then have
        with TagMatch(folder / each, layout=each, threads=1, device="cpu") as tm:
            tm.add_sets(map(tags_of, range(_FILL)), range(_FILL), where=list(map(condition_of, range(_FILL))))
            tm.consolidate()
        check_keys(folder / each, _FILL)
        for first in range(0, rounds, _CHANGES_OF_AN_INDEX):
            changes = min(_CHANGES_OF_AN_INDEX, rounds - first)
            yield Case(each, f"{number}/{first}", functools.partial(write_at_once, each, changes))


PROGRAM = Program(_cases, Length(20, 100, 600), hangs_s=300, in_a_process=1)
