"""Every public call, in which the disk fails, or which is interrupted: it changes nothing, or all.

A round is a place at which each call fails, and another one by chance. In short forms, calls share the engines.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from faults.calls import CALLS, Cases
from faults.disk import disk_full, small_files
from faults.driver import Case, Length, Program
from faults.interrupts import Interrupt, interrupted
from faults.memory import ALL
from faults.trial import try_call

ENGINES = (("rarest", 1), ("balanced", 4))
#: All that there are, here and in `memory_sweep`
FAULTS = ("disk", "memory", "interruption")
# More than files may have that are small
_SIZES = (0, 30, 100, 1_000, 4_096, 20_000)
#: Places that fail, below which each fault comes once only
FEW = 10

#: What fails, by its name
Fault = tuple[str, Callable[[], AbstractContextManager[Any]]]
#: Gives faults of a call
Faults = Callable[[Cases, Path, int, random.Random], list[Fault]]


def chosen(events: int, bound: int, rng: random.Random) -> list[int]:
    """Numbers of events: all of the first ones, and as many of those beyond the bound."""
    beyond = range(bound + 1, events + 1)
    return [*range(1, min(events, bound) + 1), *sorted(rng.sample(beyond, min(bound, len(beyond))))]


def in_calls(faults: dict[str, Faults], rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    """Cases of every call in which these faults are; in a single round, one of two calls has one of them."""
    turn = rng.randrange(4)
    for number, name in enumerate(CALLS):
        engines = ENGINES if rounds >= FEW else [ENGINES[(number // 2 + turn // 2) % len(ENGINES)]]
        only = "disk" if CALLS[name].saved else FAULTS[1 + (number // 2 + turn) % 2]
        if rounds == 1 and (number + turn) % 2:
            continue
        some = {what: faults_of for what, faults_of in faults.items() if rounds > 1 or what == only}
        for layout, threads in engines if some else ():
            options = {"layout": layout, "threads": threads, "max_partition_size": 100, "batch_size": 16}
            cases = Cases(name, options, folder / f"{name} {layout}")
            for what, faults_of in some.items():
                for text, fault in faults_of(cases, folder / "counted", rounds, rng):
                    attempt = partial(_try, cases, fault, what == "interruption")
                    yield Case(f"{name}, {layout}, {threads} threads, {what}:", text, attempt)


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


def _interruption(cases: Cases, folder: Path, bound: int, rng: random.Random) -> list[Fault]:
    if cases.call is CALLS["amatch"]:  # its loop would be interrupted, too
        return []
    for _ in range(2 if bound >= FEW else 1):  # the first time, kernels are loaded
        counter = Interrupt()
        try_call(cases, interrupted(counter), folder)
    return [(f"at {k}", lambda k=k: interrupted(Interrupt(k))) for k in chosen(counter.count, bound, rng)]


PROGRAM = Program(
    partial(in_calls, {"disk": _disk, "interruption": _interruption}),
    Length(1, 4, 100), each="failed", in_a_process=20,
)  # fmt: skip
