"""Threads in the background: when they call, and that nothing of them is left."""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from tagmatch.background import Background
from tagmatch.model.errors import ClosedError
from tagmatch.model.parallel import run

NAME = "tagmatch-test"
TIMEOUT = 60


class Owner:
    """Counts calls; each needs `go_on`, and wants the next ones after `pauses`, in turn."""

    def __init__(self, *pauses: float, then: float | None = None) -> None:
        self.calls, self.pauses, self.then = 0, list(pauses), then
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def method(self) -> float | None:
        self.entered.release()
        assert self.go_on.acquire(timeout=TIMEOUT)
        self.calls += 1
        return self.pauses.pop(0) if self.pauses else self.then

    def work(self) -> None:
        """For ever, except for what `run` gives up."""
        while True:
            run(lambda _: self.entered.release(), range(2), 1)

    def closed(self) -> None:
        raise ClosedError

    def fail(self) -> None:
        self.calls += 1
        raise RuntimeError("again" if self.calls < 4 else "otherwise")


def called(method: Callable[[], float | None], again: float | None = None) -> Background:
    return Background(method, NAME, "in vain", again)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_each_request_is_seen_to_and_no_thread_stays() -> None:
    owner = Owner()
    background = called(owner.method)
    assert threads() == []
    for calls in (1, 2):
        background.begin()
        owner.go_on.release()
        background.wait()
        assert owner.calls == calls
        wait_until(lambda: threads() == [])


def test_requests_during_a_call_have_one_more_made() -> None:
    owner = Owner()
    background = called(owner.method)
    background.begin()
    assert owner.entered.acquire(timeout=TIMEOUT)
    for _ in range(3):
        background.begin()
    assert len(threads()) == 1
    owner.go_on.release(2)
    background.wait()
    assert owner.calls == 2
    wait_until(lambda: threads() == [])


def test_pauses_are_kept_and_a_request_ends_one() -> None:
    owner = Owner()
    owner.go_on.release(10)
    never = called(owner.method)
    never.begin(after=1e12)
    assert not owner.entered.acquire(timeout=0.05)
    never.end()
    assert (owner.calls, threads()) == (0, [])
    owner.pauses = [0.001, 1e12]
    background = called(owner.method)
    background.begin(after=0.001)
    for _ in range(2):
        assert owner.entered.acquire(timeout=TIMEOUT)
    assert not owner.entered.acquire(timeout=0.05)
    assert len(threads()) == 1
    background.begin()
    background.wait()
    assert owner.calls == 3
    wait_until(lambda: threads() == [])


@pytest.mark.parametrize("when", ["in a call", "in a pause", "after the end"])
def test_it_ends_with_its_owner(when: str) -> None:
    owner = Owner(*[1e12] * (when == "in a pause"))
    entered, go_on = owner.entered, owner.go_on
    background = called(owner.method)
    background.begin()
    assert entered.acquire(timeout=TIMEOUT)
    if when != "in a call":
        go_on.release()
    del owner
    gc.collect()
    if when == "in a call":
        assert len(threads()) == 1
        go_on.release()
    wait_until(lambda: threads() == [])
    background.begin()
    wait_until(lambda: threads() == [])


def test_the_end_waits_for_a_call_and_allows_no_other() -> None:
    owner = Owner(then=0.0)
    background = called(owner.method)
    background.begin()
    assert owner.entered.acquire(timeout=TIMEOUT)
    threading.Timer(0.05, owner.go_on.release).start()
    background.end()
    assert (owner.calls, threads()) == (1, [])
    background.begin()
    background.wait()
    assert (owner.calls, threads()) == (1, [])


def test_work_of_kernels_is_given_up_and_a_closed_owner_ends_it() -> None:
    owner = Owner()
    background = called(owner.work)
    background.begin()
    assert owner.entered.acquire(timeout=TIMEOUT)
    background.end()
    assert threads() == []
    background = called(owner.closed, 0.0)
    background.begin()
    wait_until(lambda: threads() == [])


def test_what_fails_is_tried_again_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    owner = Owner()
    background = called(owner.fail, 0.0)
    background.begin()
    wait_until(lambda: owner.calls > 5)
    background.end()
    assert background.error == "RuntimeError: otherwise"
    assert [told for *_, told in caplog.record_tuples] == [
        "in vain: RuntimeError: again", "in vain: RuntimeError: otherwise"
    ]  # fmt: skip


FORKED = """
import os, sys, threading, time
from tagmatch.background import Background, renew_in_forks

def others():  # what begins anew in a child, too
    time.sleep(0.1)
    owner.others = True

os.register_at_fork(after_in_child=others)

class Owner:
    def __init__(self):
        self.lock, self.calls, self.goes_on, self.others = threading.Lock(), 0, False, os.getpid()
        renew_in_forks(self, "lock")
    def method(self):
        if self.others not in (os.getpid(), True):
            os._exit(2)
        with self.lock:
            self.calls += 1
            while not self.goes_on:
                time.sleep(0.001)
        return 0.001

owner = Owner()
background = Background(owner.method, "tagmatch-test", "in vain", in_forks=sys.argv[1] == "True")
background.begin()
while not owner.calls:
    time.sleep(0.001)
child = os.fork()
owner.goes_on = True
if child:
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")
else:
    ends, more = time.monotonic() + (60 if background._in_forks else 0.2), False
    while time.monotonic() < ends and not more:
        with owner.lock:
            more = owner.calls > 1
    background.end()
    os._exit(more)
"""


@pytest.mark.parametrize("in_forks", [True, False])
def test_forked_children(in_forks: bool) -> None:
    """A child's lock is free though a thread of the parent holds it; only some are called there, and after all else."""
    command: list[Any] = [sys.executable, "-W", "ignore", "-c", FORKED, str(in_forks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{int(in_forks)} ", "")


FORKS = """
import os, signal, sys, threading, time
from datetime import timedelta
from tagmatch import Box, Near, TagMatch
def save(*arguments, **options):
    with TagMatch(sys.argv[1], device="cpu", threads=1) as writer:
        writer.add_sets(*arguments, **options)
        writer.consolidate()
with TagMatch(device="cpu", threads=1) as first:  # children who all compile would take longer than their alarm
    first.add_sets([["near"], ["soon"]], [1, 2], area=Near(10), expires=[None, timedelta(seconds=0.1)])
    first.consolidate()
    first.move([1], 0, 0)
    assert first.match(["near"], location=(0, 0)) == first.match(["near"], within=Box(-1, -1, 1, 1))
    while len(first) > 1:
        time.sleep(0.01)
save([["near"]] * 500, range(500), area=Near(10))
times = [timedelta(seconds=key / 10) for key in range(2, 30)]
save([["soon"]] * 29, range(1, 30), expires=[None, *times])
tm, stop = TagMatch.open(sys.argv[1], device="cpu", threads=1, auto_reload=0.005), threading.Event()
tm.move(range(500), 0, 0)
def move():
    while not stop.is_set():
        for lon in (0, 20):
            tm.move(range(500), lon, 0)
for _ in range(2):
    threading.Thread(target=move).start()
children = []
for _ in range(6):
    tm.match(["soon"])
    if not (child := os.fork()):
        signal.alarm(100)
        try:
            found = [len(tm.match(["near"], location=(lon, 0))) for lon in (0, 20)]
            tm.move(range(500), 10, 0)
            assert sum(found) == 500, found
            assert len(tm.match(["near"], location=(10, 0))) == len(tm.match(["near"], within=Box(9, -1, 11, 1))) == 500
            while (tm.match(["soon"]), tm.match(["new"])) != ([1], [7]):
                time.sleep(0.01)
            tm.close()
            os._exit(7)
        finally:
            os._exit(1)
    children.append(child)
    time.sleep(0.1)
save([["new"]], [7])
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
stop.set()
assert codes == [7] * 6, codes
"""


# A thread loads or compiles a kernel while the parent forks; the child needs one that its parent has not had
LOADS = """
import os, signal, threading, time
from numba.core.compiler_lock import global_compiler_lock
from tagmatch import Near, TagMatch
tm = TagMatch(device="cpu", threads=1)
tm.add_set(["a"], 1, area=Near(10))
tm.consolidate()
tm.move([1], 0, 0)
held = threading.Event()
def load():
    with global_compiler_lock:
        held.set()
        time.sleep(0.3)
threading.Thread(target=load).start()
held.wait()
if not (child := os.fork()):
    signal.alarm(100)
    os._exit(7 if tm.match(["a"], location=(0, 0)) == [1] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [FORKS, LOADS], ids=["forks", "loads"])
def test_forked_children_of_an_index(path: Path, program: str) -> None:
    """They find and move clients, drop keys that expire, and follow the index, in any state of their parent."""
    command: list[Any] = [sys.executable, "-W", "ignore", "-c", program, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)
    said = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert (done.returncode, done.stdout, said) == (0, "", [])
