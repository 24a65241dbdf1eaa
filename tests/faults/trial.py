"""One call in which something fails: it changes nothing, and works when nothing fails any more."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from faults.calls import Answers, Case, Cases, State, later, state_of
from faults.driver import describe
from support.index_files import unnamed_in
from support.waiting import wait_until

from tagmatch import ClosedError, StagedChangesWarning, TagMatch, TagMatchError

#: What a call may raise that finds no memory, or cannot write
ERRORS = (MemoryError, TagMatchError)

_PATIENCE_S = 20
# Says a call with durability `fsync` whose change is staged
_IS_STAGED = "may not be on disk"


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
            if _IS_STAGED not in str(error):
                expected = [cases.before, *(expected if interrupted else [])]
        else:
            assert call.plain(case, result) == cases.result, f"wrong result: {result}"
        try:
            _check_afterwards(cases, case, expected, failed=failed)
        except BaseException as error:
            raise AssertionError(f"{describe(error)}; before: {cause}") from error
    return failed


def _check_afterwards(cases: Cases, case: Case, expected: list[State], *, failed: bool) -> None:
    call = cases.call
    wait_until_answered(case.tm)
    if not call.closes:
        _check_state(cases, case, expected)
    elif not failed:
        with pytest.raises(ClosedError):
            case.tm.match([])
    if failed:
        again = call.plain(case, call.ask(case))
        assert again == cases.result, f"wrong result of the second call: {again}"
    path = None if call.closes else case.tm.stats()["path"]
    if not call.closes:
        later(case.tm)
        found = state_of(case.tm)
        assert found == cases.later, f"after later calls: {found}, not {cases.later}"
        wait_until_answered(case.tm)
    case.tm.close()
    left = unnamed_in(Path(path)) if path else []
    assert not left, f"left behind: {left}"


def _check_state(cases: Cases, case: Case, expected: list[State]) -> None:
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
        assert _next_finds(Path(path)) in allowed, "the next program does not find what was staged"


def _next_finds(path: Path) -> Answers:
    """The answers of a program that finds the files as they are now, when it has consolidated."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", StagedChangesWarning)  # of what has been written in part
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
    """See that no thread ends by an error, and none is raised where nobody sees it."""
    lost: list[str] = []

    def note(arguments: Any) -> None:
        # Ctrl-C in what Python itself does when an object goes: nobody can see to that
        last = traceback.extract_tb(arguments.exc_value.__traceback__)[-1]
        if arguments.exc_type is KeyboardInterrupt and Path(last.filename).name == "_weakrefset.py":
            return
        where = getattr(arguments, "thread", None) or getattr(arguments, "object", None)
        lost.append(f"{where}: {describe(arguments.exc_value)}")

    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = sys.unraisablehook = note
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks
    assert not lost, f"errors that nobody sees: {lost}"
