from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.memory import build_library


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library under which allocations fail, for the environment of a process."""
    return build_library(tmp_path_factory.mktemp("failing_malloc"))


@pytest.fixture
def report_of(seed: int) -> Callable[..., dict[str, Any]]:
    """Runs a program of this folder and returns what it prints, which has no problems in it."""

    def run(name: str, **options: int) -> dict[str, Any]:
        command = [sys.executable, "-m", f"faults.{name}", "--seed", str(seed)]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=580)
        assert done.stdout, done.stderr[-2000:]
        report = json.loads(done.stdout)
        assert not report["problems"], "\n".join(report["problems"])
        assert done.returncode == 0
        return report

    return run
