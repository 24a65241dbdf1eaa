"""Programs that read an index while another changes it: each answer comes wholly from one snapshot.

A program consolidates, and merges segments in the background, while others reload and ask. Most sets have conditions,
and messages attributes. A round is a version.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from faults.driver import Case, Length, Program, at_once
from support.moving_keys import WAYS, ask, move_to, store_first
from support.segments import all_in

from tagmatch import TagMatch
from tagmatch.changing import Changing
from tagmatch.model.options import Layout
from tagmatch.pipeline.filters.index import Path as Way

_READERS = 4
_VERSIONS = 200
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
# Versions until all is laid out anew
_FULL = 40
# Answers until a reader begins anew, about
_ANSWERS = 50


def write(path: Path, last: int, rng: random.Random) -> Counter[str]:
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


def read(path: Path, last: int, first: int, rng: random.Random) -> Counter[str]:
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


def _read_while_written(versions: int, folder: Path, rng: random.Random) -> Counter[str]:
    """Write so many versions while others read."""
    path, seeds = folder / "index", [random.Random(rng.random()) for _ in range(_READERS + 1)]
    with TagMatch(path, **_OPTIONS) as tm:
        store_first(tm)
    readers = [functools.partial(read, path, versions, number % 2, seeds[number]) for number in range(_READERS)]
    counts = at_once(functools.partial(write, path, versions, seeds[-1]), *readers)
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
        yield Case("index", str(first), functools.partial(_read_while_written, min(_VERSIONS, rounds - first)))


PROGRAM = Program(
    _cases, Length(10, 50, 400), hangs_s=500, in_a_process=1,
    wanted=("reloads of a newer snapshot", *(f"sets found by {way}" for way in get_args(Way))),
)  # fmt: skip
