"""One call in which something fails: it changes nothing, and works when nothing fails any more."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from faults.calls import Case, Cases, later, state_of

from tagmatch import ClosedError, TagMatch, TagMatchError

#: What a call may raise that finds no memory, or cannot write
ERRORS = (MemoryError, TagMatchError)

_PATIENCE_S = 5


def try_call(cases: Cases, fault: AbstractContextManager[Any], *, interrupted: bool = False) -> bool:
    """Make the call under the fault; returns whether it failed, and raises where anything is not as it should be.

    A call that was `interrupted` may have made its change, if it has made it wholly.
    """
    call, case = cases.call, cases.new()
    failed, cause, errors = False, "the call has worked", (KeyboardInterrupt,) if interrupted else ERRORS
    with no_error_is_lost():
        try:
            with fault:
                result = call.ask(case)
        except errors as error:
            failed, cause = True, describe(error)
        else:
            assert call.plain(case, result) == cases.result, f"wrong result: {result}"
        try:
            _check_afterwards(cases, case, failed=failed, interrupted=interrupted)
        except BaseException as error:
            raise AssertionError(f"{describe(error)}; before: {cause}") from error
    return failed


def _check_afterwards(cases: Cases, case: Case, *, failed: bool, interrupted: bool) -> None:
    call = cases.call
    wait_until_answered(case.tm)
    _check_state(cases, case, failed=failed, interrupted=interrupted)
    if failed:
        again = call.plain(case, call.ask(case))
        assert again == cases.result, f"wrong result of the second call: {again}"
    if not call.closes:
        later(case.tm)
        found = state_of(case.tm)
        assert found == cases.later, f"after later calls: {found}, not {cases.later}"
        wait_until_answered(case.tm)
    case.tm.close()


def _check_state(cases: Cases, case: Case, *, failed: bool, interrupted: bool) -> None:
    if cases.call.closes:
        if not failed:
            assert _is_closed(case.tm)
        return
    expected = [cases.before if failed else cases.after]
    if interrupted:
        expected.append(cases.after)
    found = state_of(case.tm)
    assert found in expected, f"{'a failed' if failed else 'the'} call left {found}, not {expected}"
    path = case.tm.stats()["path"]
    for folder in filter(None, [path and Path(path), case.path]):
        if (folder / "MANIFEST.json").exists():
            with TagMatch.open(folder, threads=1) as opened:
                answers = state_of(opened).answers
            assert answers in (cases.before.answers, cases.after.answers), f"wrong answers of the index at {folder}"


def _is_closed(tm: TagMatch) -> bool:
    try:
        tm.match([])
    except ClosedError:
        return True
    return False


def wait_until_answered(tm: TagMatch) -> None:
    """Wait until nothing is counted as on its way; raises if that does not come."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            stats = tm.stats()
        except ClosedError:
            return
        left = {name: stats[name] for name in ("queries_in_flight", "result_bytes_in_flight")}
        if not any(left.values()):
            return
        assert time.monotonic() < deadline, f"nobody waits for an answer, but there are {left}"
        time.sleep(0.001)


@contextmanager
def no_error_is_lost() -> Iterator[None]:
    """See that no thread ends by an error, and none is raised where nobody sees it."""
    lost: list[str] = []

    def note(arguments: Any) -> None:
        # Ctrl-C in what Python itself does when an object goes: nobody can see to that
        if arguments.exc_type is KeyboardInterrupt and _last_file(arguments.exc_value) == "_weakrefset.py":
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


def _last_file(error: BaseException) -> str:
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).name


def describe(error: BaseException) -> str:
    """Return the error, and where it was raised: the last lines of tagmatch, and the last of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/site-packages/" not in frame.filename and "/tests/" not in frame.filename]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in [*own[-2:], *frames[-1:]]]
    return f"{type(error).__name__}: {error} ({'; '.join(dict.fromkeys(places))})"
