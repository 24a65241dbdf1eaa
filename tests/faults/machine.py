"""A random walk over all that an index can be asked to do, in which memory, the disk and Ctrl-C fail at random moments.

Time passes between the steps, and keys expire. After each step the index says what the oracle says.
"""

from __future__ import annotations

import functools
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
from faults.disk import disk_full, small_files
from faults.driver import Case, Length, Program, describe
from faults.interrupts import Interrupt, interrupted, signalled
from faults.memory import ALL, failing, spare_numpy
from faults.trial import ERRORS, no_error_is_lost, wait_until_answered
from oracle import Oracle
from support.areas_and_moves import AREAS, PLACES, any_at, located_table
from support.conditions import Expression, Message, any_attributes, any_expression, any_message, in_tables
from support.expiring import Clock, set_clock, times_of
from support.waiting import wait_until

from tagmatch import StagedChangesWarning, TagMatch, warm_up
from tagmatch.model.options import Durability, Layout
from tagmatch.partitioner.consolidation import FEW_SETS

_HANGS_S = 60
_COMMON_TAGS = 80
_EXPRESSIONS = 12
_STEPS_OF_A_WALK = 100
# Among them are both types of keys, and several segments
_WALKS_BEFORE = 4
#: What is made to fail
KINDS = ("memory", "disk", "file size", "interruption", "signal")
#: Some sets with conditions are found with these
_ATTRIBUTES = any_attributes(random.Random(0))
_LAYOUTS = get_args(Layout)


class Walk:
    """An index on disk and the oracle, which have seen the same changes.

    Attributes
    ----------
    on_disk : list of Oracle
        What the next program may find, which is one thing unless a call has failed.
    """

    def __init__(self, folder: Path, rng: random.Random, kinds: Sequence[str], clock: Clock) -> None:
        self.kinds, self.clock = kinds, clock
        self.rng, self.folder, self.path = rng, folder, folder / "index"
        self.key_type = rng.choice(["integer", "integer", "string"])
        self.oracle = Oracle(clock.tell)
        self.on_disk = [self.oracle]
        self.reader: TagMatch[Any] | None = None
        self.tags = [f"t{i}" for i in range(_COMMON_TAGS)]
        # A few, which are often drawn again, so that removals meet what was added
        self.expressions = [any_expression(rng, self.tags) for _ in range(_EXPRESSIONS)]
        self.counts: Counter[str] = Counter()
        self.last = ""
        self.tm = self._index()
        self.steps: dict[Callable[[], None], int] = {
            self.change: 8, self.change_many: 8, self.consolidate: 4, self.lay_out_anew: 1, self.merge: 2, self.ask: 4,
            self.ask_many: 4, self.ask_a_table: 2, self.submit: 2, self.explain: 1, self.check: 1, self.save: 1,
            self.reopen: 1, self.crash: 1, self.read: 2, self.let_time_pass: 3,
            self.move: 4, self.save_positions: 1, self.ask_where: 3,
        }  # fmt: skip

    # -- steps -------------------------------------------------------------------------------------------------------

    def change(self) -> None:
        if self.rng.random() < 1 / 3:
            self._change("remove_set", self._tags(), self._key(), where=self._where(), area=self._area())
        else:
            where, area = self._where(), self._area()
            self._change("add_set", self._tags(), self._key(), where=where, area=area, expires=self._time())

    def change_many(self) -> None:
        count = self.rng.choice([1, 10, 100, 300])
        sets = [self._tags() for _ in range(count)]
        keys = [self._key() for _ in sets]
        where = self.rng.choice([None, self._where(), [self._where() for _ in sets]])
        if self.rng.random() < 0.5:
            self._change("remove_sets", sets, keys, where=where)
        else:
            self._change("add_sets", sets, keys, where=where, expires=[self._time() for _ in sets])

    def move(self) -> None:
        """Have clients be elsewhere, some of them several times, or nowhere."""
        clients = [self._key() for _ in range(self.rng.choice([1, 10, 100]))]
        places = [self.rng.choice([(None, None), *PLACES]) for _ in clients]
        self._change("move", clients, [lon for lon, _ in places], [lat for _, lat in places])

    def save_positions(self) -> None:
        self._change("save_positions")

    def ask_where(self) -> None:
        asked = [(self._query(), any_at(self.rng)) for _ in range(self.rng.choice([1, 30]))]
        answers = self._call(lambda: self.tm.match_many(located_table(asked)))
        if answers is not None:
            expected = [self.oracle.match(tags, **at.options) for tags, at in asked]
            assert list(map(sorted, answers.to_pylist())) == expected, "wrong answers"
        tags, at = asked[0]
        found = self._call(lambda: dict(self.tm.explain(tags, **at.options)))
        assert found in (None, dict(self.oracle.explain(tags, **at.options))), "wrong explanation"

    def consolidate(self) -> None:
        self._change("consolidate")

    def lay_out_anew(self) -> None:
        self._change("consolidate", full=True)

    def merge(self) -> None:
        """Merge segments, if there are some to merge, which the thread in the background may do at the same time."""
        self._call(self.tm._engine.changing.merge, disk=True)

    def let_time_pass(self) -> None:
        """Drop keys that expire, as the thread in the background may at the same time; at last it has done it."""
        self.clock.pass_by(self.rng.randrange(1, 20))
        self._call(self.tm._engine.changing.expire)
        wait_until(lambda: self._is_like(self.oracle))

    def ask(self) -> None:
        message = self._message()
        found = self._call(lambda: (sorted(self.tm.match(*message)), self.tm.match_unique(*message)))
        assert found in (None, (self.oracle.match(*message), self.oracle.match_unique(*message))), "wrong answer"

    def ask_many(self) -> None:
        queries = [self._query() for _ in range(self.rng.choice([1, 30, 600]))]
        unique = self.rng.random() < 0.5
        answers = self._call(lambda: self.tm.match_many(queries, unique=unique))
        if answers is not None:
            ask = self.oracle.match_unique if unique else self.oracle.match
            assert list(map(sorted, answers.to_pylist())) == [sorted(ask(query)) for query in queries], "wrong answers"

    def ask_a_table(self) -> None:
        messages = [self._message() for _ in range(self.rng.choice([1, 30, 300]))]
        for numbers, table in in_tables(messages):
            answers = self._call(functools.partial(self.tm.match_many, table))
            if answers is not None:
                expected = [self.oracle.match(*messages[number]) for number in numbers]
                assert list(map(sorted, answers.to_pylist())) == expected, "wrong answers"

    def submit(self) -> None:
        messages = [self._message() for _ in range(self.rng.randrange(1, 40))]
        found = self._call(lambda: [future.result(_HANGS_S) for future in [self.tm.submit(*each) for each in messages]])
        if found is not None:
            assert list(map(sorted, found)) == [self.oracle.match(*each) for each in messages], "wrong answers"

    def explain(self) -> None:
        message = self._message()
        found = self._call(lambda: dict(self.tm.explain(*message)))
        assert found in (None, dict(self.oracle.explain(*message))), "wrong explanation"

    def check(self) -> None:
        self._call(self.tm.check)

    def save(self) -> None:
        path = self.folder / "copy"
        self._call(lambda: self.tm.save(path), disk=True)
        if (path / "MANIFEST.json").exists():
            with TagMatch.open(path, threads=1) as opened:
                opened.check()

    def reopen(self) -> None:
        """Close the index and open it again, perhaps in another layout."""
        self._call(self.tm.close)
        self.tm.close()
        self._open()

    def crash(self) -> None:
        """Go on with the files as they are, as if the program had ended."""
        self.tm._engine.changing.merging.wait()
        before, self.path = self.path, self.folder / f"index after {self.counts['steps']} steps"
        if before.exists():
            shutil.copytree(before, self.path)
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        self._open()

    def read(self) -> None:
        """Have another object read the index, which goes on with what it has until it reloads."""
        if self.reader is None:
            if (self.path / "MANIFEST.json").exists():
                self.reader = self._call(lambda: TagMatch.open(self.path, threads=1))
        else:
            self._call(self.reader.reload)
        if self.reader is not None:
            self.reader.reload()
            found = self._times_of(self.reader)
            assert any(found == oracle.times() for oracle in self.on_disk), "a reader finds other sets"

    def _times_of(self, tm: TagMatch[Any]) -> dict[Any, Any]:
        """When keys expire, of an index that drops those that have in the background; at last it has done it."""
        now = self.clock.now
        wait_until(lambda: all(at is None or at > now for at in times_of(tm).values()))
        return times_of(tm)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _index(self) -> TagMatch[Any]:
        layout, size = self.rng.choice(_LAYOUTS), self.rng.choice([7, 100, 200_000])
        threads, self.durability = self.rng.choice([1, 2]), self.rng.choice([None, *get_args(Durability)])
        return TagMatch(
            self.path, key_type=self.key_type, layout=layout, max_partition_size=size, threads=threads, batch_size=8,
            durability=self.durability,
        )  # fmt: skip

    def _open(self) -> None:
        """Open the index, in which there must be something that may be on the disk."""
        self.tm = self._call(self._index) or self._index()
        self.on_disk = [deepcopy(oracle) for oracle in self.on_disk]
        for oracle in self.on_disk:
            oracle.forget_positions()
        may_be = list(filter(self._is_like, self.on_disk))
        if len(may_be) > 1:  # which of the changes are staged, nothing shows
            self.tm.consolidate()
            for oracle in may_be:
                oracle.consolidate()
            may_be = list(filter(self._is_like, may_be))
        assert may_be, f"{self._size(self.tm.stats()['staged'], self.tm)}: not what there was"
        self.oracle = may_be[0]
        self.on_disk = [self.oracle]

    def _key(self) -> Any:
        key = self.rng.randrange(50)
        return key if self.key_type == "integer" else f"key {key}"

    def _tags(self) -> list[str]:
        """Return tags of a set: common ones and, now and then, new ones, some of them long."""
        tags = [self.tags[int(_COMMON_TAGS * self.rng.random() ** 2)] for _ in range(self.rng.randrange(4))]
        if self.rng.random() < 0.2:
            tags.append(f"n{len(self.tags)}" * self.rng.choice([1, 1, 10, 300]))
            self.tags += tags[-1:]
        return tags

    def _time(self) -> datetime | None:
        """When a key expires; for some, that has been."""
        return self.clock.after(self.rng.randrange(-5, 60)) if self.rng.random() < 0.3 else None

    def _where(self) -> Expression | None:
        return self.rng.choice(self.expressions) if self.rng.random() < 0.3 else None

    def _area(self) -> Any:
        return self.rng.choice(AREAS) if self.rng.random() < 0.3 else None

    def _message(self) -> Message:
        return any_message(self.rng, self._query())

    def _query(self) -> list[str]:
        return self.rng.sample(self.tags, self.rng.randrange(30)) + self._tags()

    def _change(self, name: str, *arguments: Any, **options: Any) -> None:
        """Make a change; one that was interrupted may have been made, but wholly."""

        def changed(oracle: Oracle) -> Oracle:
            after = deepcopy(oracle)
            getattr(after, name)(*arguments, **options)
            return after

        before, after = self.oracle, changed(self.oracle)
        is_logged = name not in ("consolidate", "save_positions", "move") and self.durability != "none"
        is_saved = name in ("consolidate", "save_positions")
        on_disk = [after] if name == "consolidate" else self.on_disk
        if is_logged or name in ("save_positions", "move"):
            on_disk = [after if oracle is before else changed(oracle) for oracle in self.on_disk]
        call = functools.partial(getattr(self.tm, name), *arguments, **options)
        outcome = self._call(lambda: call() or True, disk=is_logged or is_saved)
        if outcome:
            self.oracle, self.on_disk = after, on_disk
        else:
            first = [deepcopy(oracle) for oracle in self.on_disk]  # positions are saved before the rest
            for oracle in first if is_saved else ():
                oracle.save_positions()
            self.on_disk = _different([*self.on_disk, *first, *on_disk])
            if not self._is_like(before):
                # Ctrl-C may come when all is done, but for the letting go of what was staged
                done = [after, before.staged_again()] if isinstance(self.last_error, KeyboardInterrupt) else []
                done += [after] if "may not be on disk" in str(self.last_error) else []
                self.oracle = next(filter(self._is_like, done), before)
        found, expected = self._size(self.tm.stats()["staged"], self.tm), self._size(self.oracle.staged, self.oracle)
        assert found == expected, f"{found}, not {expected}"

    def _is_like(self, oracle: Oracle) -> bool:
        found, expected = (dict(database.explain(self.tags, _ATTRIBUTES)) for database in (self.tm, oracle))
        return (
            self.tm.stats()["staged"] == oracle.staged
            and found == expected
            and times_of(self.tm) == oracle.times()
            and self._positions() == oracle.positions
        )

    def _positions(self) -> dict[Any, Any]:
        positions = self.tm._engine.clients.positions()
        places = zip(positions.lon.tolist(), positions.lat.tolist(), strict=True)
        return dict(zip(positions.keys.to_pylist(), places, strict=True))

    @staticmethod
    def _size(staged: int, database: TagMatch | Oracle) -> str:
        return f"{staged} staged and {len(database)} stored"

    def _call(self, call: Callable[[], Any], *, disk: bool = False) -> Any:
        """Return what a call gives, or `None` if it has failed because of something that was made to fail."""
        kind, fault = self._fault(disk)
        self.counts[f"with {kind}"] += 1
        self.last = f"{self.last} with {kind}"
        self.last_error: BaseException | None = None
        try:
            with fault:
                return call()
        except (*ERRORS, KeyboardInterrupt, OSError) as error:
            if not isinstance(error, KeyboardInterrupt if kind in ("interruption", "signal") else ERRORS):
                raise
            self.last_error = error
            self.counts[f"failed by {kind}"] += 1
            return None

    def _fault(self, disk: bool) -> tuple[str, AbstractContextManager[Any]]:
        rng = self.rng
        kinds = [kind for kind in self.kinds if disk or kind not in ("disk", "file size")]
        if not kinds or rng.random() < 0.6:
            return "nothing", nullcontext()
        kind = rng.choice(kinds)
        if kind == "memory":
            first, smallest = int(100 ** rng.random()), 1 << rng.randrange(12, 20)
            return kind, rng.choice([failing(first), failing(first, ALL), failing(1, ALL, smallest=smallest)])
        if kind == "interruption":
            return kind, interrupted(Interrupt(int(3000 ** rng.random())))
        if kind == "signal":
            return kind, signalled(rng, 0.02)
        return kind, disk_full(int(60 ** rng.random()), rng.choice([None, ALL])) if kind == "disk" else small_files(
            1 << rng.randrange(8, 18)
        )

    def step(self) -> None:
        do = self.rng.choices([*self.steps], [*self.steps.values()])[0]
        self.last = do.__name__
        self.counts[self.last] += 1
        with no_error_is_lost():
            do()
            wait_until_answered(self.tm)
            self.tm.check()
            assert self._is_like(self.oracle)
            for numbers, table in in_tables(messages := [self._message() for _ in range(3)]):
                found = [sorted(keys) for keys in self.tm.match_many(table).to_pylist()]
                assert found == [self.oracle.match(*messages[number]) for number in numbers], "wrong after the step"


def _different(oracles: Sequence[Oracle]) -> list[Oracle]:
    """Those that are not like one before."""
    found: list[Oracle] = []
    for oracle in oracles:
        if not any(oracle.is_like(other) for other in found):
            found.append(oracle)
    return found


def _walk(seed: str, steps: int, kinds: Sequence[str], folder: Path) -> Counter[str]:
    """Walk from an empty index on; returns what there was, and raises at the first step that goes wrong."""
    rng = random.Random(seed)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        patched.setattr("tagmatch.partitioner.consolidation.FEW_SETS", rng.choice([0, 4, FEW_SETS]))
        warnings.simplefilter("ignore", StagedChangesWarning)
        walked = Walk(folder, rng, kinds, set_clock(patched))
        for number in range(steps):
            walked.counts["steps"] += 1
            try:
                walked.step()
            except BaseException as error:
                raise AssertionError(f"step {number}, {walked.last}: {describe(error)}") from error
        walked.tm.close()
        return walked.counts


def _cases(steps: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    spare_numpy()
    warm_up()  # LLVM ends the process where there is no memory to load a kernel
    for number in range(_WALKS_BEFORE):
        place = folder / str(number)
        place.mkdir()
        _walk(f"before {number}", _STEPS_OF_A_WALK // 2, (), place)
    for first in range(0, steps, _STEPS_OF_A_WALK):
        seed, some = str(rng.random()), min(_STEPS_OF_A_WALK, steps - first)
        yield Case("walk", str(first), lambda place, _, seed=seed, some=some: _walk(seed, some, KINDS, place))


PROGRAM = Program(
    _cases, Length(0, 1_000, 10_000), wanted=("failed by memory", "failed by interruption"), in_a_process=1,
    library="failing_malloc.c",
)  # fmt: skip
