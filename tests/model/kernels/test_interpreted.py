"""Python runs kernels that are not compiled: with an empty cache, small indexes answer as the oracle does."""

import os
import subprocess
import sys
from pathlib import Path

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

interpreted.PATIENCE = float("inf")

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


def test_nothing_is_compiled_for_little_work_and_answers_are_right(tmp_path: Path, seed: int) -> None:
    root = Path(tagmatch.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests'}", "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(seed)], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert done.returncode == 0
