"""A small run that reaches every kernel, and what compute-sanitizer finds in it: stray accesses, and races."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.agreement import assert_agree, loaded

from tagmatch.pipeline.cuda import balanced, matcher

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*Grid size")]

# What a tool says when it found nothing
CLEAN = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}


def test_small_run(monkeypatch: pytest.MonkeyPatch, engine: dict[str, Any], rng: random.Random) -> None:
    """Sets, the empty one and equal ones among them; queries with more results than there is room for at first."""
    monkeypatch.setattr(matcher, "_FIRST_ROOM", 64)
    monkeypatch.setattr(balanced, "_FIRST_ROOM", 16)
    tags = [f"tag{i}" for i in range(20)]
    sets = [(rng.sample(tags, rng.randint(0, 4)), key) for key in range(40)]
    queries = [rng.sample([*tags, "unknown"], rng.randint(0, 12)) for _ in range(12)]
    tm, oracle = loaded(sets, **engine)
    with tm:
        assert_agree(tm, oracle, queries)
        assert [sorted(future.result()) for future in map(tm.submit, queries)] == list(map(oracle.match, queries))
        assert tm.stats()["device"] == "cuda"


@pytest.mark.parametrize("tool", CLEAN)
def test_compute_sanitizer_finds_nothing(tool: str, capsys: pytest.CaptureFixture[str]) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    assert sanitizer is not None
    # Numba asks the driver for what it may not have, and goes on without
    checked = [sanitizer, "--tool", tool, "--error-exitcode", "99", "--report-api-errors", "no"]
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "-k", "test_small_run", __file__]
    done = subprocess.run(
        checked + run, cwd=Path(__file__).parents[3], env=os.environ | {"TEST_SEED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n{tool}:", *(line for line in done.stdout.splitlines() if "SUMMARY" in line or " passed" in line))
    assert done.returncode == 0, done.stdout
    assert CLEAN[tool] in done.stdout, done.stdout
