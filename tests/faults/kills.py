"""`kill -9` of a program that changes an index, at any moment: each call that had returned has lasted.

Programs work at an index one after the other, with any durability; each is killed while it stages, consolidates, lays
all sets out anew or merges segments in the background. Programs are forked off, so that a kill costs no more than what
it ends.
"""

import functools
import itertools
import multiprocessing
import multiprocessing.sharedctypes
import random
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from faults.driver import Case, Length, Program, describe
from faults.work import EVERYTHING, SOMEWHERE, STEPS, Work
from oracle import Oracle
from support.agreement import assert_agree
from support.expiring import times_of
from support.index_files import unnamed_in

from tagmatch import TagMatch
from tagmatch.changing import Changing
from tagmatch.model.options import Durability, KeyType, Layout
from tagmatch.model.storage.folders import LocalFolder
from tagmatch.partitioner.consolidation import FEW_SETS, to_merge

_FORK = multiprocessing.get_context("fork")
_KILLS_OF_AN_INDEX = 5
#: What a program can be killed in, besides steps
MERGING, ANYTHING = "a merge in the background", "anything"
#: When the manifest is new, and the logs are not removed yet
SAVED = "the rest after a snapshot is saved"
_MOMENTS = [*STEPS, MERGING, MERGING, MERGING, SAVED, SAVED, ANYTHING]
# Most programs come to the wanted moment sooner
_PATIENCE_S = 2
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}


class Progress:
    """What a program is doing, which can be seen after it was killed; `done` are steps that have returned."""

    def __init__(self, done: int) -> None:
        self._shared = multiprocessing.sharedctypes.RawArray("q", [done, -1, 0, 0])

    done = property(lambda self: int(self._shared[0]))

    @property
    def now(self) -> set[str]:
        """What is being done: a step, a merge, both or neither."""
        step, merges, saved = self._shared[1:]
        names = {[*STEPS, ""][step]: True, MERGING: merges, SAVED: saved, "": False}
        return {name for name, is_done in names.items() if is_done}

    def work(self, path: Path, work: Work, few: int, options: dict[str, Any]) -> None:
        shared, write, merge = self._shared, LocalFolder.write, Changing.merge

        def written(folder: LocalFolder, name: str, text: bytes) -> None:
            write(folder, name, text)
            shared[3] = 1

        def merged(changing: Changing) -> bool:
            shared[2] = bool(to_merge(changing.snapshot))
            try:
                return merge(changing)
            finally:
                shared[2] = 0

        with (
            warnings.catch_warnings(),
            patch("tagmatch.partitioner.consolidation.FEW_SETS", few),
            patch.object(Changing, "merge", merged),
            patch.object(LocalFolder, "write", written),
        ):
            warnings.simplefilter("ignore")
            tm: TagMatch[Any] = TagMatch(path, key_type=work.key_type, **options)
            while True:
                step = work.step(self.done)
                shared[1] = [*STEPS].index(step.name)
                step.do(tm)
                shared[1], shared[3] = -1, 0
                shared[0] += 1

    def killed(self, wanted: str, rng: random.Random, *arguments: Any) -> None:
        """Let a process work until it does the wanted step, perhaps not for the first time, or a little longer."""
        process = _FORK.Process(target=self.work, args=arguments)
        process.start()
        if wanted == ANYTHING:
            time.sleep(0.15 * rng.random())
        else:
            deadline = time.monotonic() + _PATIENCE_S
            for until in [True, False] * rng.randrange(4) + [True]:
                while (wanted in self.now) != until and time.monotonic() < deadline:
                    time.sleep(0)
            if wanted != SAVED:
                time.sleep(0.01 * rng.random() ** 2)
        process.kill()
        process.join()


@dataclass
class Index:
    """An index whose programs are killed, and what it must have."""

    path: Path
    work: Work
    rng: random.Random
    oracle: Oracle = field(default_factory=Oracle)
    done: int = 0

    def kill(self, counts: Counter[str]) -> None:
        """Let another program work at the index, and kill it."""
        rng, progress = self.rng, Progress(self.done)
        durability, few = rng.choice([None, *get_args(Durability)]), rng.choice([0, 0, 4, FEW_SETS])
        wanted = rng.choice(_MOMENTS if self.work.key_type == "integer" else [*STEPS, SAVED, ANYTHING])
        layout = {"layout": rng.choice(get_args(Layout)), "max_partition_size": rng.choice([3, 200_000])}
        options = {**_OPTIONS, **layout, "durability": durability}
        progress.killed(wanted, rng, self.path, self.work, few, options)
        counts["kills"] += 1
        counts.update(f"kills in {name}" for name in progress.now)
        counts[f"kills with durability {durability or 'default'}"] += 1
        counts["acknowledged calls"] += progress.done - self.done
        counts["acknowledged changes"] += sum(self.work.step(n).changes for n in range(self.done, progress.done))
        self._take_over(progress.done, lasting=durability != "none", counts=counts)

    def _take_over(self, done: int, *, lasting: bool, counts: Counter[str]) -> None:
        """See that the index has all steps that were done, and perhaps one more, and nothing else."""
        with TagMatch(self.path, key_type=self.work.key_type, **_OPTIONS) as tm:
            tm.check()
            found = tm.stats()["staged"], times_of(tm)
        for end in (done, done + 1, *range(self.done, done)):
            oracle = self.work.after(self.oracle, self.done, end, lasting=lasting)
            if found == (oracle.staged, oracle.times()) and self._goes_on_as(oracle.staged_again()):
                assert end >= done, f"{done - end} calls of {done - self.done} are lost, the first is {end}"
                counts["kills after which the call that was killed has been made"] += end - done
                self.oracle, self.done = oracle, end
                return
        raise AssertionError(f"neither old nor new after {done} calls: {found[0]} staged, {len(found[1])} keys")

    def _goes_on_as(self, oracle: Oracle) -> bool:
        """Whether the next program finds these sets when it has consolidated; of a copy, which then has no other files.

        It is to answer as they do.
        """
        copy = self.path.with_name("copy")
        if not self.path.exists():
            return oracle.times() == {}
        shutil.copytree(self.path, copy)
        try:
            with warnings.catch_warnings(), TagMatch(copy, key_type=self.work.key_type, **_OPTIONS) as tm:
                warnings.simplefilter("ignore")
                tm.consolidate()
                found = times_of(tm)
                if found == oracle.times():
                    assert_agree(tm, oracle, EVERYTHING)
                    for tags, at in SOMEWHERE:
                        assert sorted(tm.match(tags, **at.options)) == oracle.match(tags, **at._asdict())
                tm._engine.changing.merging.wait()
                # With the next snapshot, all goes that the killed program has left, also what it had merged
                tm.add_set(["one more"], self.work.a_key)
                tm.consolidate()
                tm._engine.changing.merging.wait()
            left = unnamed_in(copy)
            assert not left, f"left behind: {left}"
            return found == oracle.times()
        finally:
            shutil.rmtree(copy)


def _kills_of_an_index(kills: int, place: Path, rng: random.Random) -> Counter[str]:
    """Kill programs of one index, one after the other; returns what there was."""
    counts: Counter[str] = Counter()
    work = Work(str(rng.random()), rng.choice([*get_args(KeyType), "integer", "integer"]))
    index = Index(place / "index", work, rng)
    for number in range(kills):
        try:
            index.kill(counts)
        except Exception as error:
            raise AssertionError(f"kill {number}: {describe(error)}") from error
    return counts


def _cases(rounds: int, place: Path, _: random.Random) -> Iterator[Case]:
    for layout, key_type in itertools.product(get_args(Layout), get_args(KeyType)):
        work = Work(layout, key_type)  # loads the kernels, which the programs then have
        with TagMatch(place / f"{layout} {key_type}", layout=layout, key_type=key_type, **_OPTIONS) as tm:
            for number in range(60):
                work.step(number).do(tm)
            tm.consolidate()
    for first in range(0, rounds, _KILLS_OF_AN_INDEX):
        yield Case("index", str(first), functools.partial(_kills_of_an_index, min(_KILLS_OF_AN_INDEX, rounds - first)))


PROGRAM = Program(_cases, Length(10, 100), wanted=("acknowledged changes",), hangs_s=300, in_a_process=1)
