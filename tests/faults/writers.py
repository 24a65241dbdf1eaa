"""Several programs that write to an index at once: all that each one saves is there at the end, with its conditions."""

from __future__ import annotations

import functools
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args
from unittest.mock import patch

from faults.driver import Case, Length, Program
from oracle import holds_for
from support.conditions import Message
from support.numbered_conditions import FOR_ALL, condition_of, row_of, table_of

from tagmatch import IndexChangedError, IndexLockedError, TagMatch
from tagmatch.model.options import Durability, Layout
from tagmatch.partitioner.consolidation import FEW_SETS

_FORK = multiprocessing.get_context("fork")
_TIMEOUT_S = 120
_FILL = 300
_WRITERS = 3
_CHANGES_OF_AN_INDEX = 300
_WAIT_S = 0.001


def tags_of(key: int) -> list[str]:
    return [f"of {key}", f"shared {key % 7}", "all"]


def add_keys(path: Path, layout: str, keys: range, seed: str, saved: Connection) -> None:
    """Add and save keys one after the other; each is reported when it is saved. Segments may be merged meanwhile."""
    rng, waits = random.Random(seed), Counter[str]()
    durability, few = rng.choice([None, *get_args(Durability)]), rng.choice([0, 4, FEW_SETS])
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
                    waits["times that another one had changes staged"] += 1
                    time.sleep(_WAIT_S)
            while True:
                try:
                    tm.consolidate()
                    break
                except IndexChangedError:
                    waits["times that another one had saved"] += 1
                    tm.reload()
            saved.send(key)
        saved.send(waits)


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
    path, counts, programs = folder / "index", Counter[str](), []
    for number in range(_WRITERS):
        receiver, sender = _FORK.Pipe(duplex=False)
        arguments = [path, layout, range(number, changes, _WRITERS), str(rng.random()), sender]
        programs.append((_FORK.Process(target=add_keys, args=arguments), receiver))
        programs[-1][0].start()
        sender.close()
    for program, receiver in programs:
        while True:
            assert receiver.poll(_TIMEOUT_S), "a writer hangs"
            if isinstance(said := receiver.recv(), Counter):
                counts.update(said)
                break
            counts["changes by several writers"] += 1
        program.join(_TIMEOUT_S)
        assert program.exitcode == 0
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
