"""Cases that crash, hang or go wrong are named, with their files, and the others are tried nevertheless."""

import gc
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.driver import Case, Length, Program, run


def _crash(folder: Path, _: random.Random) -> str:
    (folder / "seen").write_bytes(b"this")
    os._exit(7)


def _hang(_: Path, __: random.Random) -> str:
    time.sleep(600)
    return "woken"


def _go_wrong(_: Path, __: random.Random) -> str:
    raise ValueError("went wrong")


def _program(attempts: dict[str, Callable[..., str]], **options: object) -> Program:
    def cases(rounds: int, folder: Path, _: random.Random) -> Iterator[Case]:
        (folder / "needed").touch()
        for number in range(rounds):
            for kind, attempt in attempts.items():
                yield Case(kind, str(number), attempt)
            yield Case("well", str(number), lambda own, _: f"{(folder / 'needed').exists()}, {not any(own.iterdir())}")

    return Program(cases, Length(1, 1), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attempt", "problem"), [(_crash, "ended with 7"), (_hang, "Timeout"), (_go_wrong, "ValueError: went wrong")]
)
def test_one_that_is_wrong_is_named_and_the_others_are_tried(attempt, problem):
    report = run(_program({"bad": attempt}, hangs_s=1), 3, seed=1)
    assert report.kinds == {"bad": 3, "well": 3}
    assert report.outcomes == {"True, True": 3}
    assert sorted(each.partition(":")[0] for each in report.problems) == ["bad 0", "bad 1", "bad 2"]
    assert all(problem in each for each in report.problems), report.problems
    kept = [Path(each.partition("; its files are in ")[2]) for each in report.problems if "its files" in each]
    found = sorted(file.parts[-2:] for folder in kept for file in folder.rglob("seen"))
    assert found == ([(f"bad {number}", "seen") for number in range(3)] if attempt is _crash else [])


def test_no_more_are_tried_when_many_have_crashed():
    report = run(_program({"bad": _crash}), 100, seed=1)
    assert report.kinds["bad"] < 20
    assert "the other cases were not tried" in report.problems[-1]


def test_what_does_not_come_is_a_problem():
    program = _program({}, wanted=("True, True", "other"), each="another")
    assert run(program, 2, seed=1).problems == ["no case ended so: other", "no well another"]
    assert not run(program, 2, seed=1, only="well 1").problems


class _ClientWithThreads:
    """In a cycle, as clients of brokers are; their threads are missing after a fork, and ending it crashes."""

    def __init__(self) -> None:
        self.myself, self.process = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os._exit(7)


def test_cases_end_no_object_of_the_process_that_they_are_forked_from():
    def collect(_: Path, __: random.Random) -> str:
        gc.collect()
        return "collected"

    gc.disable()
    try:
        _ClientWithThreads()
        report = run(_program({"bad": collect}), 3, seed=1)
    finally:
        gc.enable()
    assert report.problems == []
    assert gc.get_freeze_count() == 0
