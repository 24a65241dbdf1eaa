"""Every public call, in which allocations fail: it changes nothing, and works when there is memory again.

A round is an allocation of each call that fails, and another one by chance.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path

from faults.calls import Cases
from faults.driver import Case, Length, Program
from faults.memory import ALL, Allocations, failing, spare_numpy
from faults.sweep import FEW, Fault, chosen, in_calls
from faults.trial import try_call


def _memory(cases: Cases, folder: Path, bound: int, rng: random.Random) -> list[Fault]:
    """Single ones, all from one on, and all large ones."""
    counts = []
    # The first time, kernels are loaded; and now and then, tables grow that all calls share
    for _ in range(3 if bound >= FEW else 1):
        try_call(cases, failing(), folder)
        counts.append(Allocations().counted)
    numbers = chosen(min(counts[-2:]), bound, rng)
    if not numbers:
        return []
    faults: list[Fault] = [(f"allocation {k}", functools.partial(failing, k)) for k in numbers[1:]]
    some = numbers[:1] + rng.sample(numbers[1:], min(bound // 2, 10, len(numbers) - 1))
    faults += [(f"allocations from {k} on", functools.partial(failing, k, ALL)) for k in some]
    if bound >= FEW or rng.random() < 0.3:
        faults.append(("allocations of 64 KiB", functools.partial(failing, 1, ALL, smallest=1 << 16)))
    return faults + ([("allocation 1", functools.partial(failing, 1))] if bound > 1 else [])


def _cases(rounds: int, folder: Path, rng: random.Random) -> Iterator[Case]:
    spare_numpy()
    yield from in_calls({"memory": _memory}, rounds, folder, rng)


PROGRAM = Program(_cases, Length(1, 3, 25), each="failed", in_a_process=20, library="failing_malloc.c")
