"""`kill -9` of a program that changes an index, at any moment: each call that had returned has lasted.

Programs work at an index one after the other, with any durability; each is killed while it stages, consolidates, lays
all sets out anew or merges segments in the background. Programs are forked off, so that a kill costs no more than what
it ends.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import multiprocessing.sharedctypes
import random
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from faults.driver import Case, Length, Program, describe
from faults.work import EVERYTHING, SOMEWHERE, STEPS, Step, Work
from oracle import Oracle
from support.agreement import assert_agree
from support.expiring import times_of
from support.index_files import unnamed_in

from tagmatch import TagMatch
from tagmatch.changing import Changing
from tagmatch.model.options import Durability, KeyType, Layout
from tagmatch.model.storage.durable import replace_file
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
_NAMES = [*STEPS]
_OPTIONS: dict[str, Any] = {"threads": 1, "device": "cpu"}


class Progress:
    """What a program is doing, which can be seen after it was killed.

    Attributes
    ----------
    done : int
        Steps that have returned.
    """

    def __init__(self, done: int) -> None:
        self._shared = multiprocessing.sharedctypes.RawArray("q", [done, -1, 0, 0])

    @property
    def done(self) -> int:
        return int(self._shared[0])

    @property
    def now(self) -> set[str]:
        """What is being done: a step, a merge, both or neither."""
        step, merges, saved = self._shared[1:]
        return {
            *([_NAMES[step]] if step >= 0 else []), *([MERGING] if merges else []), *([SAVED] if saved else [])
        }  # fmt: skip

    def do(self, step: Step, database: Any) -> None:
        """Have a step be done."""
        self._shared[1] = _NAMES.index(step.name)
        step.do(database)
        self._shared[1], self._shared[3] = -1, 0
        self._shared[0] += 1

    def saved(self, replace: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
        """What replaces the manifest, which then is new."""

        def noted(file: Path, text: bytes) -> None:
            replace(file, text)
            self._shared[3] = 1

        return noted

    def merging(self, merge: Callable[[Changing], bool]) -> Callable[[Changing], bool]:
        """The method `merge`, while which a merge is being done, if there are segments to merge."""

        def noted(changing: Changing) -> bool:
            self._shared[2] = bool(to_merge(changing.current.snapshot))
            try:
                return merge(changing)
            finally:
                self._shared[2] = 0

        return noted


def program(path: Path, work: Work, progress: Progress, few: int, options: dict[str, Any]) -> None:
    """Work until it is killed."""
    with (
        warnings.catch_warnings(),
        patch("tagmatch.partitioner.consolidation.FEW_SETS", few),
        patch.object(Changing, "merge", progress.merging(Changing.merge)),
        patch("tagmatch.model.storage.folder.replace_file", progress.saved(replace_file)),
    ):
        warnings.simplefilter("ignore")
        tm: TagMatch[Any] = TagMatch(path, key_type=work.key_type, **options)
        for number in itertools.count(progress.done):
            progress.do(work.step(number), tm)


def killed(program: Callable[..., None], *arguments: Any, progress: Progress, wanted: str, rng: random.Random) -> None:
    """Run a program until it does what is wanted, perhaps not for the first time, or a little longer."""
    process = _FORK.Process(target=program, args=arguments)
    process.start()
    if wanted == ANYTHING:
        time.sleep(0.15 * rng.random())
    else:
        deadline = time.monotonic() + _PATIENCE_S

        def wait(*, until: bool) -> None:
            while (wanted in progress.now) != until and time.monotonic() < deadline:
                time.sleep(0)

        for _ in range(rng.randrange(4)):
            wait(until=True)
            wait(until=False)
        wait(until=True)
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
        """Have another program work at the index, and kill it."""
        rng, progress = self.rng, Progress(self.done)
        durability, few = rng.choice([None, *get_args(Durability)]), rng.choice([0, 0, 4, FEW_SETS])
        wanted = rng.choice(_MOMENTS if self.work.key_type == "integer" else [*STEPS, SAVED, ANYTHING])
        layout = {"layout": rng.choice(get_args(Layout)), "max_partition_size": rng.choice([3, 200_000])}
        options = {**_OPTIONS, **layout, "durability": durability}
        killed(program, self.path, self.work, progress, few, options, progress=progress, wanted=wanted, rng=rng)
        counts["kills"] += 1
        counts.update(f"kills in {name}" for name in progress.now)
        counts[f"kills with durability {durability or 'default'}"] += 1
        counts["acknowledged calls"] += progress.done - self.done
        counts["acknowledged changes"] += sum(self.work.step(n).changes for n in range(self.done, progress.done))
        self._take_over(progress.done, lasting=durability != "none", counts=counts)

    def _take_over(self, done: int, *, lasting: bool, counts: Counter[str]) -> None:
        """See that the index has all steps that were done, and perhaps one more, and nothing else."""
        found = self._found()
        for more in (0, 1):
            oracle = self.work.after(self.oracle, self.done, done + more, lasting=lasting)
            if found == _state(oracle) and self._goes_on_as(oracle.staged_again()):
                counts["kills after which the call that was killed has been made"] += more
                self.oracle, self.done = oracle, done + more
                return
        for fewer in range(self.done, done):
            oracle = self.work.after(self.oracle, self.done, fewer, lasting=lasting)
            if found == _state(oracle) and self._goes_on_as(oracle.staged_again()):
                raise AssertionError(f"{done - fewer} calls of {done - self.done} are lost, the first is {fewer}")
        raise AssertionError(f"neither old nor new after {done} calls: {found[0]} staged, {len(found[1])} keys")

    def _found(self) -> tuple[int, dict[Any, Any]]:
        with TagMatch(self.path, key_type=self.work.key_type, **_OPTIONS) as tm:
            tm.check()
            return tm.stats()["staged"], times_of(tm)

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


def _state(oracle: Oracle) -> tuple[int, dict[Any, Any]]:
    return oracle.staged, oracle.times()


def _kills_of_an_index(kills: int, folder: Path, rng: random.Random) -> Counter[str]:
    """Kill programs of one index, one after the other; returns what there was."""
    counts: Counter[str] = Counter()
    work = Work(str(rng.random()), rng.choice([*get_args(KeyType), "integer", "integer"]))
    index = Index(folder / "index", work, rng)
    for number in range(kills):
        try:
            index.kill(counts)
        except Exception as error:
            raise AssertionError(f"kill {number}: {describe(error)}") from error
    return counts


def _cases(rounds: int, folder: Path, _: random.Random) -> Iterator[Case]:
    """Kill so many programs."""
    for layout, key_type in itertools.product(get_args(Layout), get_args(KeyType)):
        work = Work(layout, key_type)  # loads the kernels, which the programs then have
        with TagMatch(folder / f"{layout} {key_type}", layout=layout, key_type=key_type, **_OPTIONS) as tm:
            for number in range(60):
                work.step(number).do(tm)
            tm.consolidate()
    for first in range(0, rounds, _KILLS_OF_AN_INDEX):
        yield Case("index", str(first), functools.partial(_kills_of_an_index, min(_KILLS_OF_AN_INDEX, rounds - first)))


PROGRAM = Program(_cases, Length(10, 100, 400), wanted=("acknowledged changes",), hangs_s=300, in_a_process=1)
