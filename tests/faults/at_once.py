"""Programs that use an index at once: all that each one saves is there at the end, and each answer is of one snapshot.

Several add keys, with conditions. Or one consolidates, and merges segments in the background, while others reload and
ask; most sets have conditions, and messages attributes. A round is a version there, and two keys here.
"""

import itertools
import random
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from faults.driver import Case, Length, Program, at_once
from oracle import holds_for
from support.conditions import Message
from support.moving_keys import FOR_ALL, WAYS, ask, condition_of, move_to, row_of, store_first, table_of
from support.segments import all_in

from tagmatch import IndexChangedError, IndexLockedError, TagMatch
from tagmatch.changing import Changing
from tagmatch.model.options import Durability, Layout
from tagmatch.partitioner.consolidation import FEW_SETS
from tagmatch.pipeline.filters.index import Path as Way

_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
_WRITERS, _WAIT_S = 3, 0.001
_READERS = 4
#: Versions of an index, and versions until all is laid out anew
_VERSIONS, _FULL = 150, 40
# Answers until a reader begins anew, about
_ANSWERS = 50


def tags_of(key: int) -> list[str]:
    return [f"of {key}", f"shared {key % 7}", "all"]


def add_keys(path: Path, layout: str, keys: range, rng: random.Random) -> Counter[str]:
    """Add and save keys one after the other, while segments may be merged."""
    counts, durability, few = Counter[str](), rng.choice([None, *get_args(Durability)]), rng.choice([0, 4, FEW_SETS])
    with (
        patch("tagmatch.partitioner.consolidation.FEW_SETS", few),
        TagMatch(path, layout=layout, **_OPTIONS, durability=durability) as tm,
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
    """Check that an index has this number of keys, each if its condition holds; returns how many have conditions."""
    tags = ["all", *(f"shared {i}" for i in range(7)), *(f"of {key}" for key in range(most))]
    messages = [Message(tags, attributes) for attributes in (FOR_ALL, {}, {"price": [7], "sold": True})]
    with TagMatch.open(path, **_OPTIONS) as tm:
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
    counts = at_once(*(partial(add_keys, path, layout, keys, random.Random(rng.random())) for keys in parts))
    counts["found by their conditions"] = check_keys(path, changes)
    assert counts["found by their conditions"] >= changes // 2
    return counts


def move_keys(path: Path, last: int, rng: random.Random) -> Counter[str]:
    """Make one version after the other, in another layout now and then."""
    merge, counts = Changing.merge, Counter[str]()

    def counted(changing: Changing) -> bool:
        has_merged = merge(changing)
        counts["merges"] += has_merged
        return has_merged

    with patch("tagmatch.partitioner.consolidation.FEW_SETS", 0), patch.object(Changing, "merge", counted):
        version = 0
        while version < last:
            options = {**_OPTIONS, "layout": rng.choice(get_args(Layout)), "max_partition_size": rng.choice([7, 10**5])}
            with TagMatch(path, **options) as tm:
                for _ in range(min(rng.randrange(1, _FULL), last - version)):
                    version += 1
                    move_to(tm, version, full=version % _FULL == 0)
                    counts["consolidations"] += 1
                    if rng.random() < 0.5:
                        tm._engine.changing.merging.wait()
    return counts


def ask_on(path: Path, last: int, first: int, rng: random.Random) -> Counter[str]:
    """Reload and ask until there is the last version; now and then open the index anew, as it is laid out then.

    Sets with conditions are found by the trie or by lines in turn.
    """
    seen, counts = {0}, Counter[str]()
    for way in itertools.islice(itertools.cycle(get_args(Way)), first, None):
        if last in seen:
            break
        with all_in(way), TagMatch.open(path, **_OPTIONS) as tm:
            for version in ask(tm, rng, max(seen)):
                seen.add(version)
                counts["answers"] += 1
                counts["reloads"] += 1
                counts["reloads of a newer snapshot"] += tm.reload()
                if version == last or rng.random() < 1 / _ANSWERS:
                    break
            tm.check()
            counts.update({f"sets found by {way}": sets for way, sets in tm.stats()["with_conditions"].items()})
    return counts


def read_while_written(versions: int, folder: Path, rng: random.Random) -> Counter[str]:
    path, seeds = folder / "index", [random.Random(rng.random()) for _ in range(_READERS + 1)]
    with TagMatch(path, **_OPTIONS) as tm:
        store_first(tm)
    readers = [partial(ask_on, path, versions, number % 2, seeds[number]) for number in range(_READERS)]
    counts = at_once(partial(move_keys, path, versions, seeds[-1]), *readers)
    assert counts["consolidations"] == versions
    return counts


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    # Loads the kernels, which the programs then have
    for each, way in itertools.product(get_args(Layout), get_args(Way)):
        with all_in(way), TagMatch(folder / f"{each} {way}", layout=each, **_OPTIONS) as tm:
            store_first(tm)
            deque(itertools.islice(ask(tm, rng), len(WAYS)), 0)
            move_to(tm, 1)
    for first in range(0, rounds, _VERSIONS):
        count = min(_VERSIONS, rounds - first)
        yield Case("readers", str(first), partial(read_while_written, count))
        for each in get_args(Layout):
            yield Case(f"writers, {each}", str(first), partial(write_at_once, each, 2 * count))


PROGRAM = Program(
    _cases, Length(10, 50), hangs_s=500, in_a_process=1,
    wanted=("reloads of a newer snapshot", *(f"sets found by {way}" for way in get_args(Way))),
)  # fmt: skip
