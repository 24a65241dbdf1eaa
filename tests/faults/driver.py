"""Cases that are tried in processes that are forked off, on all processors: one that crashes or hangs has failed.

A program makes named cases. Their outcomes are counted; the folder of one that went wrong is kept, and named.
"""

import contextlib
import faulthandler
import gc
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, NamedTuple

from faults.failing import compiled, preloading

#: Has the files of cases, which need not last, if there is room
_IN_MEMORY, _ROOM = "/dev/shm", 1 << 30
_MOST_DEATHS, _MOST_KEPT, _MOST_SAID = 10, 20, 2_000
_FORK = get_context("fork")


class Case(NamedTuple):
    """A case, whose kind and name no other has together.

    `attempt` tries it in an empty folder; it returns how that ended, or how often it ended in which ways, and raises if
    that is wrong.
    """

    kind: str
    name: str
    attempt: Callable[[Path, random.Random], str | Mapping[str, int]]


class Length(NamedTuple):
    """How many rounds there are in `make test`, perhaps none, and in `make nightly`."""

    test: int
    nightly: int


@dataclass(frozen=True)
class Program:
    """Makes the cases of some rounds. Their needs are in a folder, and stay there until all have been tried."""

    cases: Callable[[int, Path, random.Random], Iterable[Case]]
    rounds: Length
    #: Outcomes without which the cases are not what they should be
    wanted: tuple[str, ...] = ()
    #: Outcome that some case of each kind must have, if there are several rounds
    each: str = ""
    #: A case that takes longer hangs
    hangs_s: float = 60
    #: Most cases one after the other in a process
    in_a_process: int = 100
    #: A source in C that the program runs under
    library: str = ""
    #: Whether it needs its own process for another reason: gRPC does not survive a fork
    alone: bool = False


@dataclass
class Report:
    """How many cases of each kind there were, how often there was which outcome, and what went wrong."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    ended: set[tuple[str, str]] = field(default_factory=set)

    def lacks(self, program: Program, *, several: bool) -> list[str]:
        """Which outcomes there should have been."""
        kinds = self.kinds if program.each and several else ()
        lacking = [f"no {kind} {program.each}" for kind in kinds if (kind, program.each) not in self.ended]
        return [f"no case ended so: {each}" for each in program.wanted if not self.outcomes[each]] + lacking


def run(program: Program, rounds: int, seed: int, *, only: str = "") -> Report:
    """Try the cases of `rounds` rounds; `only` those whose kind and name begin so."""
    report = Report()
    has_room = os.path.isdir(_IN_MEMORY) and shutil.disk_usage(_IN_MEMORY).free > _ROOM
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if has_room else None) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of changes that are staged still; cases that look for warnings say so
        place, shared = Path(folder, "cases"), Path(folder, "shared")
        place.mkdir()
        shared.mkdir()
        cases = program.cases(rounds, shared, random.Random(seed))
        chosen = (case for case in cases if f"{case.kind} {case.name}".startswith(only))
        _try_all(chosen, program, seed, place, report)
    report.problems += [] if only else report.lacks(program, several=rounds > 1)
    return report


def _try_all(cases: Iterator[Case], program: Program, seed: int, place: Path, report: Report) -> None:
    running: dict[Any, _Process] = {}
    left: list[Sequence[Case]] = []
    processes, begun, deaths = os.cpu_count() or 1, 0, 0
    # A forked process must not end an object that waits for threads of this process, such as a client of Kafka
    gc.collect()
    gc.freeze()
    try:
        while deaths < _MOST_DEATHS:
            while len(running) < processes:
                # Few at first, so that all processors have some
                count = min(program.in_a_process, 1 + begun // (2 * processes))
                if not (some := left.pop() if left else list(itertools.islice(cases, count))):
                    break
                begun += len(some)
                process = _Process(some, seed, place, program.hangs_s)
                running[process.end] = process
            if not running:
                return
            for end in connection.wait([*running]):
                if rest := running.pop(end).ended(report):
                    deaths += 1
                    left += [rest[1:]] if rest[1:] else []
        report.problems.append(f"{deaths} processes have ended: the other cases were not tried")
    finally:
        for process in running.values():
            process.kill()
        gc.unfreeze()


class _Process:
    """A process that tries cases one after the other; `end` can be waited for."""

    def __init__(self, cases: Sequence[Case], seed: int, place: Path, hangs_s: float) -> None:
        self._cases, self._place = cases, place
        self._out, self._errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 - until it has ended
        self._process = _FORK.Process(target=self._try, args=(seed, hangs_s))
        self._process.start()
        self.end = os.pidfd_open(self._process.pid or 0)  # its sentinel waits for what it forks as well

    def _try(self, seed: int, hangs_s: float) -> None:
        os.setpgid(0, 0)
        os.dup2(self._errors.fileno(), 2)
        faulthandler.enable(self._errors)
        for case in self._cases:
            faulthandler.dump_traceback_later(hangs_s, exit=True, file=self._errors)
            tried = self._tried(case, seed)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(tried), file=self._out, flush=True)
        os._exit(0)

    def _tried(self, case: Case, seed: int) -> tuple[Mapping[str, int], str]:
        folder = self._folder_of(case)
        folder.mkdir()
        try:
            outcome = case.attempt(folder, random.Random(f"{seed}/{case.kind}/{case.name}"))
        except BaseException as error:
            return {}, describe(error)
        shutil.rmtree(folder, ignore_errors=True)
        return {outcome: 1} if isinstance(outcome, str) else outcome, ""

    def _folder_of(self, case: Case) -> Path:
        return self._place / f"{case.kind} {case.name}".replace("/", "-")

    def ended(self, report: Report) -> Sequence[Case]:
        """Report what there was; returns the cases from the one on that has ended the process."""
        self.kill()
        for text in (self._out, self._errors):
            text.seek(0)
        errors, tried = self._errors.read(), [json.loads(line) for line in self._out]
        said = f"; its process has said: {errors[-_MOST_SAID:]}" if errors else ""
        if self._process.exitcode:
            tried.append([{}, f"the process ended with {self._process.exitcode}: {_why(errors)}"])
            said = ""
        for case, (outcomes, problem) in zip(self._cases, tried, strict=False):
            report.kinds[case.kind] += 1
            report.outcomes.update(outcomes)
            report.ended.update((case.kind, outcome) for outcome in outcomes)
            if problem:
                self._note(report, case, problem + said)
        return self._cases[len(tried) - 1 :] if self._process.exitcode else ()

    def _note(self, report: Report, case: Case, problem: str) -> None:
        text, folder = f"{case.kind} {case.name}: {problem}", self._folder_of(case)
        if folder.is_dir() and any(folder.iterdir()) and len(report.problems) < _MOST_KEPT:
            kept = tempfile.mkdtemp(prefix="faults-")
            shutil.move(folder, kept)
            text += f"; its files are in {kept}"
        shutil.rmtree(folder, ignore_errors=True)
        report.problems.append(text)

    def kill(self) -> None:
        """End it, if it has not ended, and what it had started and not ended."""
        self._process.kill()
        self._process.join()
        os.close(self.end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)


def _why(errors: str) -> str:
    """What a process said when it crashed or hung, and where its thread in question was, or else the first."""
    blocks = errors.split("\n\n")
    threads = [block for block in blocks if "most recent call first" in block]
    guilty = next((block for block in threads if block.startswith("Current")), threads[-1] if threads else "")
    frames = [line.strip().removeprefix('File "') for line in guilty.splitlines() if "File" in line]
    return f"{blocks[0].splitlines()[:1]} at {' < '.join(frames[:6])}"


def describe(error: BaseException) -> str:
    """The error, and its place: the last lines of tagmatch, and the last of all."""
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/site-packages/" not in frame.filename and "/tests/" not in frame.filename]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in [*own[-2:], *frames[-1:]]]
    return f"{type(error).__name__}: {error} ({'; '.join(dict.fromkeys(places))})"


def at_once(*parts: Callable[[], Counter[str]]) -> Counter[str]:
    """Do all of these, each in a fork, in which warnings are errors; the sum of what they count."""
    programs = ProcessPoolExecutor(len(parts), _FORK, initializer=warnings.simplefilter, initargs=("error",))
    found = [programs.submit(part) for part in parts]
    # Where one fails, the others end with this process
    counts = sum((each.result() for each in as_completed(found)), Counter[str]())
    programs.shutdown()
    return counts


# -- programs ----------------------------------------------------------------------------------------------------------


def program_of(name: str) -> Program:
    program: Program = importlib.import_module(f"faults.{name}").PROGRAM
    return program


def figures_of(name: str, rounds: int, seed: int, only: str = "", *, forks: bool = True) -> dict[str, Any]:
    """The figures of a program; from another process if it runs under a library, or this one may not be forked."""
    program = program_of(name)
    has_library = program.library and Path(program.library).stem in os.environ.get("LD_PRELOAD", "")
    if has_library or (not program.library and (forks or not program.alone)):
        found = run(program, rounds, seed, only=only)
        figures = {"program": name, "seed": seed, "cases": found.kinds.total()}
        return {**figures, "kinds": found.kinds, "outcomes": found.outcomes, "problems": found.problems}
    with tempfile.TemporaryDirectory() as folder:
        environment = preloading(compiled(program.library, Path(folder)) if program.library else None)
        command = [sys.executable, "-m", "faults", name, "--rounds", str(rounds), "--seed", str(seed), "--only", only]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert done.stdout, f"it ended with {done.returncode}"
    return json.loads(done.stdout)


def nothing_goes_wrong(figures: dict[str, Any]) -> None:
    print({name: figures[name] for name in ("cases", "kinds", "outcomes")})
    assert not figures["problems"], "\n".join(figures["problems"])
