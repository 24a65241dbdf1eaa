"""Every public call, in which memory or the disk fails, or which is interrupted: it changes nothing, or all.

A round is a place at which each call fails, and another one by chance. In short forms, calls share the engines.
"""

import errno
import random
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.calls import CALLS, Answers, Cases, State, later, state_of
from faults.calls import Case as Called
from faults.driver import Case, Length, Program, describe
from faults.failing import ALL, Interrupt, allocations, disk_full, failing, interrupted, small_files, spare_numpy
from support.index_files import unnamed_in
from support.waiting import wait_until

import tagmatch
from tagmatch import ClosedError, StagedChangesWarning, TagMatch, TagMatchError

#: What a call may raise that finds no memory, or cannot write
ERRORS = (MemoryError, TagMatchError)

_PATIENCE_S = 20
# Says a call with durability `fsync` whose change is staged
IS_STAGED = "may not be on disk"


def try_call(cases: Cases, fault: AbstractContextManager[Any], folder: Path, *, interrupted: bool = False) -> bool:
    """Make the call under the fault, with an index in a folder; returns whether it failed, or raises if that is wrong.

    A call that was `interrupted` may have made its change, if it has made it wholly. One that says that what it has
    staged may not be on disk, has made it.
    """
    call, case = cases.call, cases.new(folder)
    failed, cause, errors = False, "the call has worked", (KeyboardInterrupt,) if interrupted else ERRORS
    expected = [cases.after]
    with no_error_is_lost(), cases.surroundings():
        try:
            with fault:
                result = call.ask(case)
        except errors as error:
            failed, cause = True, describe(error)
            if IS_STAGED not in str(error):
                expected = [cases.before, *(expected if interrupted else [])]
        else:
            assert call.plain(case, result) == cases.result, f"wrong result: {result}"
        try:
            _check_afterwards(cases, case, expected, failed=failed)
        except BaseException as error:
            raise AssertionError(f"{describe(error)}; before: {cause}") from error
    return failed


def _check_afterwards(cases: Cases, case: Called, expected: list[State], *, failed: bool) -> None:
    call = cases.call
    wait_until_answered(case.tm)
    if not call.closes:
        _check_state(cases, case, expected)
    elif not failed:
        with pytest.raises(ClosedError):
            case.tm.match([])
    if failed:
        right = [cases.result]
        if cases.after in expected and not call.closes and state_of(case.tm) == cases.after:
            right.append(cases.again)  # it was interrupted when it had made its change
        again = call.plain(case, call.ask(case))
        assert again in right, f"wrong result of the second call: {again}"
    path = None if call.closes else case.tm.stats()["path"]
    if not call.closes:
        later(case.tm)
        found = state_of(case.tm)
        assert found == cases.later, f"after later calls: {found}, not {cases.later}"
        wait_until_answered(case.tm)
    case.tm.close()
    left = unnamed_in(Path(path)) if path else []
    assert not left, f"left behind: {left}"


def _check_state(cases: Cases, case: Called, expected: list[State]) -> None:
    found, path = state_of(case.tm), case.tm.stats()["path"]
    assert found in expected, f"the call left {found}, not {expected}"
    for folder in filter(None, [path and Path(path), case.path]):
        if (folder / "MANIFEST.json").exists():
            with TagMatch.open(folder, threads=1) as opened:
                answers = state_of(opened).answers
            assert answers in (cases.before.answers, cases.after.answers), f"wrong answers of the index at {folder}"
    if path and cases.call.durability != "none":
        known = {id(cases.before): cases.before_in_effect, id(cases.after): cases.after_in_effect}
        allowed = [known[id(state)] for state in expected]
        assert _next_finds(Path(path)) in allowed, "the next program does not find the staged changes"


def _next_finds(path: Path) -> Answers:
    """The answers of a program that finds the files as they are now, when it has consolidated."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", StagedChangesWarning)  # of partly written changes
        copy = shutil.copytree(path, Path(folder, "index"))
        with TagMatch(copy, threads=1) as tm:
            tm.consolidate()
            return state_of(tm).answers


def wait_until_answered(tm: TagMatch) -> None:
    """Wait until nothing is counted as on its way; raises if that does not come."""

    def is_answered() -> bool:
        stats = tm.stats()
        return not stats["queries_in_flight"] and not stats["result_bytes_in_flight"]

    with suppress(ClosedError):
        wait_until(is_answered, _PATIENCE_S)


@contextmanager
def no_error_is_lost() -> Iterator[None]:
    """Check that no thread ends by an error, and no error is raised unseen."""
    lost: list[str] = []

    def note(arguments: Any) -> None:
        # Ctrl-C while Python, or Hypothesis, finalizes an object cannot be handled
        last = Path(traceback.extract_tb(arguments.exc_value.__traceback__)[-1].filename)
        if arguments.exc_type is KeyboardInterrupt and Path(tagmatch.__file__).parent not in last.parents:
            return
        where = getattr(arguments, "thread", None) or getattr(arguments, "object", None)
        lost.append(f"{where}: {describe(arguments.exc_value)}")

    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = sys.unraisablehook = note
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
    assert not lost, f"errors that were not seen: {lost}"


ENGINES = (("rarest", 1), ("balanced", 4))
# More than files may have that are small
_SIZES = (0, 30, 100, 1_000, 4_096, 20_000)
# Of those that fail there are many
_MOST_ALLOCATIONS = 25
#: Places that fail, below which each fault comes once only
FEW = 10

#: What fails, by its name
Fault = tuple[str, Callable[[], AbstractContextManager[Any]]]


def chosen(events: int, bound: int, rng: random.Random) -> list[int]:
    """Numbers of events: all of the first ones, and as many of those beyond the bound."""
    beyond = range(bound + 1, events + 1)
    return [*range(1, min(events, bound) + 1), *sorted(rng.sample(beyond, min(bound, len(beyond))))]


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """Cases of every call with every fault; in a single round, one of four calls has one of them."""
    spare_numpy()
    first = rng.randrange(16)
    for number, name in enumerate(CALLS, first):
        turn = number // 4
        engines = ENGINES if rounds >= FEW else [ENGINES[turn % len(ENGINES)]]
        only = _disk if CALLS[name].saved else (_memory, _interruption)[turn // 2 % 2]
        if rounds == 1 and number % 4:
            continue
        for layout, threads in engines:
            options = {"layout": layout, "threads": threads, "max_partition_size": 100, "batch_size": 16}
            cases = Cases(name, options, folder / f"{name} {layout}")
            for faults_of in (_disk, _memory, _interruption) if rounds > 1 else (only,):
                for text, fault in faults_of(cases, folder / "counted", rounds, rng):
                    attempt = partial(_try, cases, fault, faults_of is _interruption)
                    yield Case(f"{name}, {layout}, {threads} threads, {faults_of.__name__[1:]}:", text, attempt)


def _try(cases: Cases, fault: Callable[[], AbstractContextManager[Any]], ends: bool, folder: Path, _: Any) -> str:
    return "failed" if try_call(cases, fault(), folder, interrupted=ends) else "worked"


def _disk(cases: Cases, folder: Path, bound: int, rng: random.Random) -> list[Fault]:
    """Single steps, all from one on, and all files that grow large."""
    made: list[str] = []
    if cases.call.saved:
        try_call(cases, disk_full(0, made=made), folder)
    if not made:
        return []
    codes = (errno.ENOSPC, errno.EIO)
    if bound < FEW:
        places = rng.sample(range(1, len(made) + 1), min(2 * bound, len(made)))
        ways = [(k, rng.choice((k, ALL)), rng.choice(codes)) for k in places]
    else:
        ways = [(k, last, code) for k in chosen(len(made), bound, rng) for code in codes for last in (k, ALL)]
    sizes = _SIZES if bound >= FEW else rng.sample(_SIZES, rng.randrange(2))
    return [
        *((f"{errno.errorcode[code]} from {k} to {last}", partial(disk_full, k, last, code)) for k, last, code in ways),
        *((f"files of {size} bytes", partial(small_files, size)) for size in sizes),
    ]


def _memory(cases: Cases, folder: Path, bound: int, rng: random.Random) -> list[Fault]:
    """Single ones, all from one on, and all large ones."""
    bound = min(bound, _MOST_ALLOCATIONS)
    counts = []
    # The first time, kernels are loaded; and now and then, tables grow that all calls share
    for _ in range(3 if bound >= FEW else 1):
        try_call(cases, failing(), folder)
        counts.append(allocations("counted"))
    numbers = chosen(min(counts[-2:]), bound, rng)
    if not numbers:
        return []
    faults: list[Fault] = [(f"allocation {k}", partial(failing, k)) for k in numbers[1:]]
    some = numbers[:1] + rng.sample(numbers[1:], min(bound // 2, 10, len(numbers) - 1))
    faults += [(f"allocations from {k} on", partial(failing, k, ALL)) for k in some]
    if bound >= FEW or rng.random() < 0.3:
        faults.append(("allocations of 64 KiB", partial(failing, 1, ALL, smallest=1 << 16)))
    return faults + ([("allocation 1", partial(failing, 1))] if bound > 1 else [])


def _interruption(cases: Cases, folder: Path, bound: int, rng: random.Random) -> list[Fault]:
    if cases.call is CALLS["amatch"]:  # its loop would be interrupted, too
        return []
    for _ in range(2 if bound >= FEW else 1):  # the first time, kernels are loaded
        counter = Interrupt()
        try_call(cases, interrupted(counter), folder)
    return [(f"at {k}", lambda k=k: interrupted(Interrupt(k))) for k in chosen(counter.count, bound, rng)]


PROGRAM = Program(_cases, Length(1, 3), each="failed", in_a_process=20, library="failing_malloc.c")
