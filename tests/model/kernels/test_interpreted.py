"""Python runs kernels that are not compiled: with an empty cache, small indexes answer as the oracle does.

Meanwhile, kernels that are due are compiled in the background: nothing waits for that, breaks, or outlives the process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tagmatch

# Builds, changes, saves and opens indexes of all kinds, and asks in all ways; prints each kernel that is compiled
PROGRAM = """
import random, sys, tempfile
from itertools import product
from typing import get_args
from numba.core import event
from oracle import Oracle
from support.agreement import assert_agree
from support.conditions import Message, any_attributes, any_expression
from tagmatch import Box, Circle, TagMatch
from tagmatch.model.options import Layout
from tagmatch.model.kernels import interpreted

interpreted.PATIENCE = float(sys.argv[2])

class Shown(event.Listener):
    def on_start(self, event):
        print(event.data["dispatcher"].py_func.__qualname__, event.data["args"], flush=True)

    def on_end(self, event):
        pass

event.register("numba:compile", Shown())
rng = random.Random(sys.argv[1])
tags = [f"t{number}" for number in range(8)] + ["a tag of more than fifteen bytes", "é" * 40]
some = lambda most: rng.sample(tags, rng.randint(0, most))
messages = [Message(each, {}) for each in ([], tags, some(6))]
messages += [Message(some(6), any_attributes(rng)) for _ in range(4)]
for layout, (last_key, kinds) in product(get_args(Layout), ((9, 0), (2**64 - 1, 2))):
    oracle, name = Oracle(), tempfile.mkdtemp() + "/index"
    with TagMatch(name, layout=layout, threads=2, max_partition_size=4) as tm:
        for _ in range(2):
            rows, where = [some(4) for _ in range(25)], None
            if kinds:
                where = [any_expression(rng, tags) if rng.randrange(kinds) else None for _ in rows]
            for database in (tm, oracle):
                database.add_sets(rows, [number % 9 or last_key for number in range(25)], where=where)
                database.remove_set(rows[0], last_key)
                database.consolidate()
        assert_agree(tm, oracle, messages)
    with TagMatch.open(name) as tm:
        assert_agree(tm, oracle, messages)
for plane, largest in product((False, True), (20_000, 3_000_000)):
    oracle = Oracle(plane=plane)
    with TagMatch(plane=plane) as tm:
        place = lambda: (rng.uniform(-5, 5), rng.uniform(-5, 5))
        areas = [Circle(*place(), rng.uniform(0, 2 if plane else largest)) for _ in range(60)]
        areas += [Circle(0, 0, largest), *(Box(x - 1, y - 2, x + 1, y + 1) for x, y in [place() for _ in range(30)])]
        for database in (tm, oracle):
            for number, area in enumerate(areas):
                database.add_set(tags[: number % 2], number, area=area)
            database.consolidate()
        for where in ({"location": place()}, {"location": place(), "within": Circle(*place(), 1)}):
            for most in (0, 4):
                assert sorted(tm.match(tags[:most], **where)) == oracle.match(tags[:most], **where)
"""


# Changes and asks a small index while something fails, and does the same again
AGAIN = """
import math, random, signal, sys
from itertools import count
import numpy as np
from tagmatch import TagMatch
from tagmatch.model.kernels import interpreted

interpreted.PATIENCE, left, make = float(sys.argv[3]), math.inf, np.empty

def empty(*arguments, **options):
    global left
    left -= 1
    if left == 0:
        raise MemoryError
    return make(*arguments, **options)

empty.__module__ = "numpy"
np.empty = empty

def complain(unraisable):  # what Ctrl-C leaves half made in llvmlite complains when it is dropped
    if not unraisable.object.__module__.startswith("llvmlite."):
        sys.__unraisablehook__(unraisable)

sys.unraisablehook = complain
signal.signal(signal.SIGALRM, signal.default_int_handler)

def work(tm):
    tm.add_set(["a", "c"], 3, where="price < 9")
    tm.consolidate()
    assert sorted(tm.match(["a", "b", "c"], {"price": 5})) == [1, 2, 3]
    assert tm.match_many([["a", "b"], ["c"]]).to_pylist() == [[1, 2], []]

random.seed(sys.argv[2])
failed = 0
for number in count(1):
    with TagMatch(threads=2) as tm:
        tm.add_sets([["a"], ["a", "b"]], [1, 2])
        tm.consolidate()
        if sys.argv[1] == "memory":
            left = number
        else:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.1))
        try:
            work(tm)
        except (MemoryError, KeyboardInterrupt):
            failed += 1
        left, is_over = math.inf, left > 0 if sys.argv[1] == "memory" else number == 40
        signal.setitimer(signal.ITIMER_REAL, 0)
        work(tm)
        tm.check()
        if is_over:
            break
print(failed)
"""


# Each kernel is due at its first call, and compiled in the background
DUE = """
import os, random, signal, sys, threading, time
import numba
from tagmatch import TagMatch
from tagmatch.model.kernels import interpreted
from tagmatch.model.kernels.behind import behind

interpreted.PATIENCE = 0.0

def asked(tm):
    tm.add_sets([["a"], ["a", "b"]], [1, 2])
    tm.add_set(["a", "c"], 3, where="price < 9")
    tm.consolidate()
    assert sorted(tm.match(["a", "b", "c"], {"price": 5})) == [1, 2, 3]
    assert tm.match_many([["a", "b"], ["c"]]).to_pylist() == [[1, 2], []]
    return tm

def wait_for(is_so):
    until = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.001)
"""
BUSY = f"""{DUE}
tm = asked(TagMatch(threads=2))
assert [each.daemon for each in threading.enumerate() if each.name == "tagmatch-compiler"] == [True]
wait_for(lambda: behind.is_busy)
"""
# A kernel of the user's own is compiled before those that are due; then the process forks; and children compile
OTHERS = """
due = len(behind._due)
assert numba.njit(lambda number: number + 1)(1) == 2
assert len(behind._due) == due
for _ in range(3):
    time.sleep(random.uniform(0, 0.3))
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        assert numba.njit(lambda number: number + 1)(1) == 2
        asked(tm)
        wait_for(lambda: behind.is_busy)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    wait_for(lambda: behind.is_busy)
"""
# What is due is compiled, and then there is no thread
ALL = """
interpreted.PATIENCE = 1e9
tm = TagMatch()
tm.add_set(["a"], 1)
tm.consolidate()
for interpreted.PATIENCE in (1e9, 0.0, 1e9):  # a kernel is due once it has run
    assert tm.match(["a"]) == [1]
wait_for(lambda: not behind._due)
for _ in range(2):
    assert tm.match(["a"]) == [1]
assert tm._engine.changing.answering.matcher.one_query.is_entered
wait_for(lambda: "tagmatch-compiler" not in {each.name for each in threading.enumerate()})
assert not behind._failed
"""


# Asks for a short text, then for a long one; the process ends when a kernel is compiled that something waits for
LONG = """
import os, sys, threading
import pyarrow as pa
from numba.core import event
from tagmatch import TagMatch

class Ends(event.Listener):
    def on_start(self, event):
        if threading.current_thread() is threading.main_thread():
            os._exit(7)

    def on_end(self, event):
        pass

tm = TagMatch(device="cpu")
tm.add_set([], 1, where='text contains "a"')
tm.consolidate()
event.register("numba:compile", Ends())
for text in ("ab", "a" * 3_000_000):
    print(len(text), flush=True)
    tm.match([], {"text": text}) if sys.argv[1] == "one" else tm.match_many(pa.table({"text": [text]}))
"""


def ended(program: str, cache: Path, *arguments: str) -> tuple[int, str, str]:
    root = Path(tagmatch.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_nothing_is_compiled_for_little_work_and_answers_are_right(tmp_path: Path, seed: int) -> None:
    assert ended(PROGRAM, tmp_path, str(seed), "inf") == (0, "", "")


@pytest.mark.parametrize("way", ["one", "many"])
def test_python_does_not_read_long_texts(tmp_path: Path, way: str) -> None:
    """For minutes, as it would if only the arrays of the index counted."""
    assert ended(LONG, tmp_path, way) == (7, "2\n3000000\n", "")


@pytest.mark.nightly
def test_answers_are_right_while_kernels_are_compiled_in_the_background(tmp_path: Path, seed: int) -> None:
    code, compiled, complaints = ended(PROGRAM, tmp_path, str(seed), "0")
    assert (code, complaints) == (0, "")
    assert compiled


@pytest.mark.parametrize("seconds", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_process_ends_cleanly_while_kernels_are_compiled_in_the_background(tmp_path: Path, seconds: float) -> None:
    assert ended(f"{BUSY}time.sleep({seconds})", tmp_path) == (0, "", "")


def test_what_is_compiled_in_the_background_makes_way_for_others_and_for_forks(tmp_path: Path) -> None:
    assert ended(BUSY + OTHERS, tmp_path) == (0, "", "")


@pytest.mark.nightly
def test_all_that_is_due_is_compiled_in_the_background(tmp_path: Path) -> None:
    assert ended(DUE + ALL, tmp_path) == (0, "", "")


@pytest.mark.parametrize("patience", ["inf", pytest.param("0", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("what", ["memory", "interrupt"])
def test_after_a_lack_of_memory_or_ctrl_c_the_same_can_be_done_again(
    tmp_path: Path, seed: int, what: str, patience: str
) -> None:
    """Each array that a kernel, or what calls it, makes fails once; and Ctrl-C comes at some moment."""
    code, told, complaints = ended(AGAIN, tmp_path, what, str(seed), patience)
    assert (code, complaints) == (0, "")
    assert int(told) > (5 if what == "memory" else 0)  # a slow machine is interrupted before it begins
