"""Programs that write to an index: several at once, and one that is killed in the midst of it.

`python -m faults.writers --kills 200 --seed 7`, in `tests`, prints what was tried and what went wrong. The programs are
forked off, so that a kill costs no more than what it ends.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import get_args

from tagmatch import IndexChangedError, IndexNotFoundError, TagMatch, TagMatchError
from tagmatch.model.options import Layout

_FORK = multiprocessing.get_context("fork")
_TIMEOUT_S = 120
_FILL = 300


def tags_of(key: int) -> list[str]:
    return [f"of {key}", f"shared {key % 7}", "all"]


def add_keys(path: Path, layout: str, keys: range, saved: Connection) -> None:
    """Add and save keys one after the other; each is reported when it is saved."""
    with TagMatch(path, layout=layout, threads=1, device="cpu", durability="none") as tm:
        for key in keys:
            tm.add_set(tags_of(key), key)
            while True:
                try:
                    tm.consolidate()
                    break
                except IndexChangedError:
                    tm.reload()
            saved.send(key)
        saved.send(None)


def keys_in(path: Path, most: int) -> list[int]:
    """All keys of a whole index."""
    with TagMatch.open(path, threads=1, device="cpu", durability="none") as tm:
        tm.check()
        found = tm.match_many([["all", *(f"shared {i}" for i in range(7)), *(f"of {key}" for key in range(most))]])
    return sorted(found.values.to_pylist())


def kill_a_writer(path: Path, layout: str, rng: random.Random, counts: Counter[str]) -> None:
    """What was reported as saved is there, and at most one change more; the next writer cleans up and goes on."""
    receiver, sender = _FORK.Pipe(duplex=False)
    program = _FORK.Process(target=add_keys, args=[path, layout, range(10**6), sender])
    program.start()
    sender.close()
    saved = 0
    for _ in range(rng.randrange(4)):
        assert receiver.poll(_TIMEOUT_S)
        saved = receiver.recv() + 1
    time.sleep(0.03 * rng.random())
    program.kill()
    program.join()
    with suppress(EOFError):
        while True:
            saved = receiver.recv() + 1
    counts["kills"] += 1
    counts["kills that left files"] += bool(list(path.glob("unfinished-*")))
    try:
        found = keys_in(path, saved + 1)
    except IndexNotFoundError:
        found = []
    assert found in (list(range(saved)), list(range(saved + 1))), f"{saved} were saved; there are {found}"
    with TagMatch(path, layout=layout, threads=1, device="cpu", durability="none") as tm:
        tm.add_set(tags_of(saved + 1), saved + 1)
        tm.consolidate()
    assert keys_in(path, saved + 2) == sorted({*found, saved + 1})
    left = [entry.name for entry in path.iterdir() if entry.name not in ("LOCK", "MANIFEST.json")]
    assert len(left) == 1, f"left behind: {left}"


def write_at_once(path: Path, layout: str, writers: int, changes: int, counts: Counter[str]) -> None:
    """Each key of each writer is there at the end."""
    programs = []
    for number in range(writers):
        receiver, sender = _FORK.Pipe(duplex=False)
        keys = range(number, writers * changes, writers)
        programs.append((_FORK.Process(target=add_keys, args=[path, layout, keys, sender]), receiver))
        programs[-1][0].start()
        sender.close()
    for program, receiver in programs:
        while True:
            assert receiver.poll(_TIMEOUT_S), "a writer hangs"
            if receiver.recv() is None:
                break
            counts["changes by several writers"] += 1
        program.join(_TIMEOUT_S)
        assert program.exitcode == 0
    assert keys_in(path, writers * changes) == list(range(writers * changes))


def run(kills: int, changes: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Try all that; returns what there was, and what went wrong."""
    rng, counts, problems = random.Random(seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index")

        def attempt(do: Callable[..., None], *arguments: object) -> None:
            shutil.rmtree(path, ignore_errors=True)
            try:
                do(path, *arguments, counts)
            except (AssertionError, EOFError, TagMatchError) as error:
                problems.append(f"{do.__name__}: {error!r}")

        for each in get_args(Layout):
            # Loads the kernels, which the programs then have
            with TagMatch(path, layout=each, threads=1, device="cpu", durability="none") as tm:
                tm.add_sets(map(tags_of, range(_FILL)), range(_FILL))
                tm.consolidate()
            assert keys_in(path, _FILL) == list(range(_FILL))
            for _ in range(-(-kills // 2)):
                attempt(kill_a_writer, each, rng)
            attempt(write_at_once, each, 3, -(-changes // 6))
    return counts, problems


def main() -> None:
    """Run, and print as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--changes", type=int, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    arguments = parser.parse_args()
    counts, problems = run(arguments.kills, arguments.changes, arguments.seed)
    print(json.dumps({"seed": arguments.seed, "counts": counts, "problems": problems}, indent=1))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
