"""The tests of `cuda` without a GPU: under Numba's simulator, which must be chosen before Numba is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cuda_tests_under_the_simulator() -> None:
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-m", "gpu", str(folder / "cuda")]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        command, cwd=folder.parents[1], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
