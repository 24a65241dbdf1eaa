"""Every public call, in which memory or the disk fails, or which is interrupted: it changes nothing, or all.

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
from faults.driver import Case, Length, Program
from faults.failing import ALL, Interrupt, allocations, disk_full, failing, interrupted, small_files, spare_numpy
from faults.trial import try_call

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
    """Cases of every call with every fault; in a single round, one of two calls has one of them."""
    spare_numpy()
    turn = rng.randrange(4)
    for number, name in enumerate(CALLS):
        engines = ENGINES if rounds >= FEW else [ENGINES[(number // 2 + turn // 2) % len(ENGINES)]]
        only = _disk if CALLS[name].saved else (_memory, _interruption)[(number // 2 + turn) % 2]
        if rounds == 1 and (number + turn) % 2:
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


PROGRAM = Program(_cases, Length(1, 3, 100), each="failed", in_a_process=20, library="failing_malloc.c")
