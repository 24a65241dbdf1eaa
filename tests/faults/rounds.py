"""What programs have in common that try something for so many rounds: a seed, which each round's random numbers come
from, and what they print.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tagmatch import TagMatchError

#: Tries something in a new folder; returns how it ended, and raises where that is wrong
Attempt = Callable[[Path, random.Random], str]


@dataclass
class Report:
    """How many cases of each kind there were, how many ended in which way, and what went wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def in_turn(attempts: Sequence[Attempt], rounds: int, seed: int) -> Report:
    """Make the attempts, one after the other and again from the first on, on all processors."""
    report = Report()
    chosen = [attempts[number % len(attempts)] for number in range(rounds)]
    names = [f"{seed}/{number}" for number in range(rounds)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
        for attempt, name, (outcome, problem) in zip(chosen, names, pool.map(_try, chosen, names), strict=True):
            report.kinds[attempt.__name__] += 1
            if problem:
                report.problems.append(f"{attempt.__name__} {name}: {problem}")
            else:
                report.outcomes[outcome] += 1
    return report


def _try(attempt: Attempt, name: str) -> tuple[str, str]:
    """Return how an attempt ended, and what was wrong with that."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return attempt(Path(folder), random.Random(name)), ""
        except (AssertionError, OSError, TagMatchError, subprocess.TimeoutExpired) as error:
            return "", repr(error)


def main_of(description: str, run: Callable[[int, int], Report], rounds: int, name: str = "rounds") -> None:
    """Run so many rounds with a seed, and print as JSON; `rounds` unless the command line says otherwise, by a name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(f"--{name}", dest="rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    report = run(arguments.rounds, arguments.seed)
    figures = {"seed": arguments.seed, "cases": report.kinds.total(), **vars(report)}
    print(json.dumps(figures, indent=1))
    sys.exit(bool(report.problems))
