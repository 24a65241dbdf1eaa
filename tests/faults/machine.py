"""Any order of calls of an index, as `interface/test_state_machine.py` has them; some fail at first.

Memory, the disk or Ctrl-C ends them at any moment; each then has changed nothing, or all, and works once more.
"""

import functools
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, get_args

import hypothesis
import pytest
from faults.driver import Case, Length, Program
from faults.failing import ALL, Interrupt, disk_full, failing, interrupted, signalled, small_files, spare_numpy
from faults.sweep import ERRORS, IS_STAGED, no_error_is_lost, wait_until_answered
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from interface.test_state_machine import DROPPING, Index
from support.expiring import set_clock

from tagmatch import TagMatch, warm_up
from tagmatch.changing import Changing
from tagmatch.model.options import KeyType, Layout
from tagmatch.partitioner.consolidation import FEW_SETS

_STEPS_OF_A_WALK, _INDEXES_OF_A_WALK, _WALKS_BEFORE = 100, 4, 4
#: What is made to fail; the last two end calls by Ctrl-C
_KINDS = ("memory", "disk", "file size", "interruption", "signal")
_STAGE = ("add_set", "add_sets", "add_subscriptions", "remove_set", "remove_sets")
_SAVE = (*_STAGE, "consolidate", "save_positions", "merge", "open")
_FAIL = (*_SAVE, "move", "match", "match_unique", "match_many", "explain", "check", "to_arrow")


class Faults:
    """Lets calls fail now and then."""

    def __init__(self, rng: random.Random, counts: Counter[str]) -> None:
        self._rng, self._counts = rng, counts

    def call(self, name: str, call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        """What a call gives, or the error by which it ended because something was made to fail."""
        kind, fault = self._any(saves=name in _SAVE)
        self._counts[f"with {kind}"] += 1
        try:
            with no_error_is_lost(), fault:
                return call(), None
        except (*ERRORS, KeyboardInterrupt) as error:
            if kind == "nothing" or not isinstance(error, KeyboardInterrupt if kind in _KINDS[-2:] else ERRORS):
                raise
            self._counts[f"failed by {kind}"] += 1
            return None, error

    def _any(self, *, saves: bool) -> tuple[str, AbstractContextManager[Any]]:
        rng = self._rng
        kinds = _KINDS if saves else [kind for kind in _KINDS if kind not in ("disk", "file size")]
        match rng.choice(kinds) if rng.random() < (0.5 if saves else 0.04) else "nothing":
            case "memory" as kind:
                first, smallest = int(100 ** rng.random()), 1 << rng.randrange(12, 20)
                return kind, rng.choice([failing(first), failing(first, ALL), failing(1, ALL, smallest=smallest)])
            case "interruption" as kind:
                return kind, interrupted(Interrupt(int(3000 ** rng.random())))
            case "signal" as kind:
                return kind, signalled(rng, 0.02)
            case "disk" as kind:
                return kind, disk_full(int(60 ** rng.random()), rng.choice([None, ALL]))
            case "file size" as kind:
                return kind, small_files(1 << rng.randrange(8, 18))
        return "nothing", nullcontext()


class Failing:
    """An index whose calls may fail, and are made again then; `in_doubt` is whether a log may lack a change."""

    def __init__(self, tm: TagMatch[Any], faults: Faults) -> None:
        self._tm, self._faults, self.in_doubt = tm, faults, False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._tm, name)
        return functools.partial(self.call, name, found) if name in _FAIL else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tm)

    def __len__(self) -> int:
        return len(self._tm)

    def __contains__(self, tags: Any) -> bool:
        return tags in self._tm

    def call(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What a call gives, perhaps the second time; one that has staged all before it failed is not made again."""
        call, before = functools.partial(call, *arguments, **options), self._tm.stats()["staged"]
        found, error = self._faults.call(name, call)
        if error is None:
            return found
        wait_until_answered(self._tm)
        self._tm.check()
        staged = self._tm.stats()["staged"] - before
        if name not in _STAGE or not staged:
            return call()
        assert isinstance(error, KeyboardInterrupt) or IS_STAGED in str(error), f"a failed call has staged {staged}"
        self.in_doubt |= IS_STAGED in str(error)
        return staged


class Walk(Index):
    """As there, but the first attempt at a call may fail. What a consolidation counts is not known then."""

    def __init__(self, faults: Faults, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.faults = faults

    def open(self, *arguments: Any) -> None:
        _, error = self.faults.call("open", lambda: super(Walk, self).open(*arguments))
        if error is not None:
            super().open(*arguments)
        self.tm = Failing(self.tm, self.faults)

    @rule(full=st.booleans())
    def consolidate(self, full: bool = False) -> None:
        self.tm.consolidate(full=full)
        self.oracle.consolidate()
        self.lasting, self.tm.in_doubt = 0, False
        self.tm.check()

    @rule()
    def merge(self) -> None:
        self.tm.call("merge", self.tm._engine.changing.merge)

    def note_lasting(self) -> None:
        super().note_lasting()
        if self.tm.in_doubt:
            self.consolidate()


def _walk(seed: int, steps: int, folder: Path, _: Any = None, *, calm: bool = False) -> Counter[str]:
    """Walk from a few empty indexes of a kind on; returns what there was."""
    rng, counts, once = random.Random(seed), Counter[str](), Changing.expire
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(folder))
        patched.setattr("tagmatch.partitioner.consolidation.FEW_SETS", rng.choice([0, 4, FEW_SETS]))
        kind = set_clock(patched), rng.choice(get_args(Layout)), rng.choice(get_args(KeyType))
        patched.setattr(Changing, "expire", lambda own: once(own) if DROPPING.is_set() else 0.002)
        if calm:
            patched.setattr(Faults, "_any", lambda *_, **__: ("nothing", nullcontext()))
        chosen = hypothesis.settings(
            max_examples=_INDEXES_OF_A_WALK, stateful_step_count=max(1, steps // _INDEXES_OF_A_WALK), deadline=None,
            database=None, phases=[hypothesis.Phase.generate], suppress_health_check=[*hypothesis.HealthCheck],
        )  # fmt: skip
        try:
            run_state_machine_as_test(hypothesis.seed(seed)(lambda: Walk(Faults(rng, counts), *kind)), settings=chosen)
        except BaseExceptionGroup as flaky:  # when Hypothesis tries it once more, other calls fail
            raise flaky.exceptions[0] from None
    return counts


def _cases(steps: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    spare_numpy()
    warm_up()  # LLVM ends the process without memory to load a kernel
    for number in range(_WALKS_BEFORE):
        _walk(number, _STEPS_OF_A_WALK, folder, calm=True)
    for first in range(0, steps, _STEPS_OF_A_WALK):
        walk = functools.partial(_walk, rng.getrandbits(32), min(_STEPS_OF_A_WALK, steps - first))
        yield Case("walk", str(first), walk)


PROGRAM = Program(
    _cases, Length(0, 1_000), wanted=("failed by memory", "failed by interruption"), hangs_s=300,
    in_a_process=1, library="failing_malloc.c",
)  # fmt: skip
