"""Trials in processes that are forked off, so that one that crashes or hangs is one that failed.

`python -m faults.sweep --layout rarest --threads 4` prints, as lines of JSON, what became of every public call, of
which each allocation has failed; with `--fault disk` each step that writes, with `--fault interruption` it is
interrupted.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import functools
import itertools
import json
import mmap
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from faults.calls import CALLS, Cases
from faults.disk import disk_full, small_files
from faults.interrupts import Interrupt, interrupted
from faults.memory import (
    ALL,
    SMALLEST,
    Allocations,
    begin_under_library,
    count_allocations,
    environment,
    failing,
    spare_numpy,
)
from faults.trial import describe, try_call

# A trial takes less than a second
_HANGS_S = 30
_MOST_DEATHS = 3
# More than files may have that are small
_SIZES = (0, 30, 100, 1_000, 4_096, 20_000)


@dataclass
class Report:
    """What became of the trials of one call; `events` are what could fail in it."""

    call: str
    events: int
    trials: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)


Trial = tuple[str, Callable[[], bool]]


def run_isolated(trials: Sequence[Trial], report: Report, *, hangs_s: float = _HANGS_S) -> None:
    """Do trials, each with its name, of at most `hangs_s` seconds; a trial returns whether its call failed."""
    position = mmap.mmap(-1, 8)  # of the trial that the forked process is at
    first = deaths = 0
    while first < len(trials) and deaths < _MOST_DEATHS:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            pid = os.fork()
            if pid == 0:
                _do(trials, first, position, out, errors, hangs_s)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for text in (out, errors):
                text.seek(0)
            for line in map(json.loads, out):
                report.trials += 1
                report.failed += line["failed"]
                report.problems += line["problems"]
            if status == 0:
                return
            at = int.from_bytes(position[:8], "little")
            report.trials += 1
            report.problems.append(f"{trials[at][0]}: the process ended with {status}: {_why(errors.read())}")
            first = at + 1
            deaths += 1


def _do(trials: Sequence[Trial], first: int, position: Any, out: TextIO, errors: TextIO, hangs_s: float) -> Any:
    status = 1
    try:
        os.dup2(errors.fileno(), 2)
        faulthandler.enable(errors)
        for i in range(first, len(trials)):
            position[:8] = i.to_bytes(8, "little")
            faulthandler.dump_traceback_later(hangs_s, exit=True, file=errors)
            name, trial = trials[i]
            failed, problems = False, []
            try:
                failed = trial()
            except BaseException as error:
                problems.append(f"{name}: {error if isinstance(error, AssertionError) else describe(error)}")
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps({"failed": failed, "problems": problems}), file=out, flush=True)
        status = 0
    finally:
        os._exit(status)


def _why(errors: str) -> str:
    """Return what a process said when it crashed or hung, and where its thread in question was, or else the first."""
    blocks = errors.split("\n\n")
    threads = [block for block in blocks if "most recent call first" in block]
    guilty = next((block for block in threads if block.startswith("Current")), threads[-1] if threads else "")
    frames = [line.strip().removeprefix('File "') for line in guilty.splitlines() if "File" in line]
    return f"{blocks[0].splitlines()[:1]} at {' < '.join(frames[:6])}"


def chosen(events: int, bound: int, rng: random.Random) -> list[int]:
    """Return numbers of events: all of the first ones, and as many of those beyond the bound."""
    beyond = range(bound + 1, events + 1)
    return [*range(1, min(events, bound) + 1), *sorted(rng.sample(beyond, min(bound, len(beyond))))]


def memory_report(name: str, options: dict[str, Any], bound: int, rng: random.Random) -> Report:
    """Have allocations fail in the call `name`: single ones, all from one on, and all large ones."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(name, options, Path(folder))
        counts = []
        for _ in range(3):
            try_call(cases, count_allocations())
            counts.append(Allocations().counted)
        # The first time, kernels are loaded; and now and then, tables grow that all calls share
        events = min(counts[1:])
        numbers = chosen(events, bound, rng)
        faults = [(f"allocation {k}", (k,)) for k in numbers]
        faults += [(f"allocations from {k} on", (k, ALL)) for k in rng.sample(numbers, min(10, len(numbers)))]
        faults.append(("allocations of 64 KiB", (1, ALL, 1 << 16)))
        report = Report(name, events)

        def trial(first: int, last: int | None = None, smallest: int = SMALLEST) -> bool:
            return try_call(cases, failing(first, last, smallest=smallest))

        run_isolated([(text, functools.partial(trial, *fault)) for text, fault in faults], report)
    return report


def disk_report(name: str, options: dict[str, Any], bound: int, rng: random.Random) -> Report:
    """Have what the call `name` does to the disk fail: single steps, all from one on, and all files that grow large."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(name, options, Path(folder))
        counted = Counted(disk_full(0))
        try_call(cases, counted)
        events = len(counted.made)
        report = Report(name, events)

        def trial(fault: Callable[..., AbstractContextManager[Any]], *arguments: int) -> bool:
            return try_call(cases, fault(*arguments))

        faults: list[tuple[str, Callable[[], bool]]] = []
        for code, k in itertools.product((errno.ENOSPC, errno.EIO), chosen(events, bound, rng)):
            faults.append((f"{errno.errorcode[code]} at {k}", functools.partial(trial, disk_full, k, k, code)))
            faults.append((f"{errno.errorcode[code]} from {k} on", functools.partial(trial, disk_full, k, ALL, code)))
        faults += [(f"files of {size} bytes", functools.partial(trial, small_files, size)) for size in _SIZES]
        run_isolated(faults, report)
    return report


class Counted(AbstractContextManager[None]):
    """A block of `disk_full`, and what was done in it."""

    def __init__(self, block: AbstractContextManager[list[str]]) -> None:
        self._block = block

    def __enter__(self) -> None:
        self.made = self._block.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._block.__exit__(*error)


def interrupt_report(name: str, options: dict[str, Any], bound: int, rng: random.Random) -> Report:
    """Interrupt the call `name` where signals are looked for."""
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(name, options, Path(folder))
        for _ in range(2):  # the first time, kernels are loaded
            counter = Interrupt()
            try_call(cases, interrupted(counter))
        report = Report(name, counter.count)

        def trial(at: int) -> bool:
            return try_call(cases, interrupted(Interrupt(at)), interrupted=True)

        numbers = chosen(counter.count, bound, rng)
        run_isolated([(f"interruption {k}", functools.partial(trial, k)) for k in numbers], report)
    return report


@contextmanager
def sweeps(library: Path, seed: int, engines: Sequence[tuple[str, int]], *options: str) -> Iterator[dict[Any, Any]]:
    """Have every call tried in processes under the library: futures of reports by call, for each of the engines."""

    def sweep(layout: str, threads: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "faults.sweep", "--layout", layout, "--threads", str(threads), *options]
        done = subprocess.run(
            [*command, "--seed", str(seed)], env=environment(library), capture_output=True, text=True, timeout=1200
        )
        assert done.returncode in (0, 1), done.stderr[-2000:]
        return {report["call"]: report for report in map(json.loads, done.stdout.splitlines())}

    with ThreadPoolExecutor(2) as pool:
        yield {engine: pool.submit(sweep, *engine) for engine in engines}


#: What calls may meet
REPORTS = {"memory": memory_report, "disk": disk_report, "interruption": interrupt_report}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="rarest")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bound", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--fault", default="memory", choices=REPORTS, help="what calls meet")
    parser.add_argument("calls", nargs="*")
    arguments = parser.parse_args()
    begin_under_library("faults.sweep", "--seed", str(arguments.seed))
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    spare_numpy()
    options = {"layout": arguments.layout, "threads": arguments.threads, "max_partition_size": 100, "batch_size": 16}
    problems = False
    for name in arguments.calls or [name for name, call in CALLS.items() if call.saved or arguments.fault != "disk"]:
        seed = random.Random(f"{arguments.seed} {name}")
        report = REPORTS[arguments.fault](name, options, arguments.bound, seed)
        problems |= bool(report.problems)
        print(json.dumps(asdict(report)), flush=True)
    sys.exit(problems)


if __name__ == "__main__":
    main()
