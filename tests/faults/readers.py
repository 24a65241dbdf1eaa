"""Programs that read an index while another changes it: each answer comes wholly from one snapshot.

`python -m faults.readers --rounds 200 --seed 7`, in `tests`, has a program consolidate so many times, and merge
segments in the background, while eight others reload and ask; it prints what they saw and what went wrong. Most sets
have conditions, and messages attributes.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import warnings
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice, product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from faults.rounds import Report, main_of
from faults.trial import describe
from support.moving_keys import WAYS, MixedError, ask, move_to, store_first
from support.paths import all_in

from tagmatch import TagMatch
from tagmatch.changing import Changing
from tagmatch.model.options import Layout
from tagmatch.pipeline.filters.index import Path as Way

_FORK = multiprocessing.get_context("fork")
_READERS = 8
_HANGS_S = 500
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}
# Versions until all is laid out anew
_FULL = 40
# Answers until a reader begins anew, about
_ANSWERS = 50

Part = Callable[[Path, int, str, Counter[str]], None]


def write(path: Path, last: int, seed: str, counts: Counter[str]) -> None:
    """Make one version after the other, in another layout now and then."""
    rng, merge = random.Random(seed), Changing.merge

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


def read(path: Path, last: int, seed: str, counts: Counter[str]) -> None:
    """Reload and ask until there is the last version; now and then open the index anew, as it is laid out then.

    Sets with conditions are found by the trie or by lines, one or the other, as is drawn each time.
    """
    rng, seen = random.Random(seed), {0}
    while last not in seen:
        with all_in(rng.choice(get_args(Way))), TagMatch.open(path, **_OPTIONS) as tm:
            for version in ask(tm, rng, max(seen)):
                seen.add(version)
                counts["answers"] += 1
                counts["reloads"] += 1
                counts["reloads of a newer snapshot"] += tm.reload()
                if version == last or rng.random() < 1 / _ANSWERS:
                    break
            tm.check()
            counts.update({f"sets found by {way}": sets for way, sets in tm.stats()["with_conditions"].items()})
    counts["versions seen, by all readers"] += len(seen)


def _in_a_process(part: Part, path: Path, last: int, seed: str, report: Connection) -> None:
    counts, problem = Counter({"mixed": 0, "errors": 0}), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            part(path, last, seed, counts)
    except BaseException as error:
        counts["mixed" if isinstance(error, MixedError) else "errors"] += 1
        problem = f"{part.__name__} {seed}: {describe(error)}"
    report.send((counts, problem))


def run(rounds: int, seed: int) -> Report:
    """Write so many versions while others read."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        # Loads the kernels, which the programs then have
        for each, way in product(get_args(Layout), get_args(Way)):
            with all_in(way), TagMatch(Path(folder, f"{each} {way}"), layout=each, **_OPTIONS) as tm:
                store_first(tm)
                deque(islice(ask(tm, random.Random(seed)), len(WAYS)), 0)
                move_to(tm, 1)
        path = Path(folder, "index")
        with TagMatch(path, **_OPTIONS) as tm:
            store_first(tm)
        programs = []
        for number in range(_READERS + 1):
            receiver, sender = _FORK.Pipe(duplex=False)
            part = read if number else write
            name = f"{seed}/{number}"
            programs.append((_FORK.Process(target=_in_a_process, args=[part, path, rounds, name, sender]), receiver))
            programs[-1][0].start()
            sender.close()
        for process, receiver in programs:
            try:
                assert receiver.poll(_HANGS_S)
                counts, problem = receiver.recv()
                report.outcomes.update(counts)
                report.problems += [problem] if problem else []
            except (AssertionError, EOFError):
                report.problems.append("a program hangs, or was ended")
            process.kill()
            process.join()
    report.kinds.update({"readers": _READERS, "consolidations": report.outcomes.pop("consolidations", 0)})
    return report


def main() -> None:
    main_of("Read while another program writes.", run, 200)


if __name__ == "__main__":
    main()
