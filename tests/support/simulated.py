"""Runs the tests of `tests/pipeline/cuda` without a GPU: under Numba's simulator, chosen before Numba is imported."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "pipeline" / "cuda"
FILES = sorted(file.stem.removeprefix("test_gpu_") for file in FOLDER.glob("test_gpu_*.py"))
#: Files by what they are about, which take about as long together
PARTS = {"areas": ["areas", "filters"], "matchers": ["batches", "matcher"], "workloads": ["figures", "systems"]}
PARTS["answers"] = sorted({*FILES} - {file for part in PARTS.values() for file in part})


def simulate(files: Sequence[str], marked: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=9", "-m", marked]
    done = subprocess.run(
        [*command, *(str(FOLDER / f"test_gpu_{file}.py") for file in files)],
        cwd=FOLDER.parents[2], env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"} | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    print(done.stdout)
