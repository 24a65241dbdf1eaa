"""Mistakes that no wrong answer shows, as they only make more work: each has to fail a test.

`python mutants.py`, in `tests`, makes them one by one in a copy of the code and runs the tests that should see them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_COPIED = ("model", "partitioner", "pipeline", "tagmatch", "tests", "workloads", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake.

    Attributes
    ----------
    name : str
    file : str
    right, wrong : str
        What stands there once, and what is to stand there instead.
    tests : tuple of str
        Arguments for pytest.
    simulated : bool
        Whether the tests are of CUDA, which is simulated then.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    simulated: bool = False


_PREFILTERS = ("tests/pipeline/test_prefilters.py",)
_ROUTING = ("tests/pipeline/cuda/test_gpu_batches.py", "-k", "routing")
_PREFILTER = ("tests/pipeline/cuda/test_gpu_batches.py", "-k", "prefilter")

MUTANTS = (
    Mutant(
        "Algorithm 2 without its mask check, on the CPU",
        "pipeline/cpu/partition_index.py",
        "            if contains(query, masks[m]):",
        "            if True:",
        _PREFILTERS,
    ),
    Mutant(
        "Algorithm 2 without its mask check, on CUDA: counting",
        "pipeline/cuda/routing.py",
        "_U(0):\n                cuda.atomic.add(counts, run - first, 1)\n",
        "_U(0) or True:\n                cuda.atomic.add(counts, run - first, 1)\n",
        _ROUTING,
        simulated=True,
    ),
    Mutant(
        "Algorithm 2 without its mask check, on CUDA: queueing",
        "pipeline/cuda/routing.py",
        "_U(0):\n                queued[",
        "_U(0) or True:\n                queued[",
        _ROUTING,
        simulated=True,
    ),
    Mutant(
        "Algorithm 4 given the whole partition's rows",
        "pipeline/cuda/items.py",
        "        a, b, c = masks[block, 0], masks[block, 1], masks[block, 2]\n",
        "        a = b = c = ~_U(0)\n"
        "        for other in range(first_blocks[run], first_blocks[run + np.uint32(1)]):\n"
        "            a, b, c = a & masks[other, 0], b & masks[other, 1], c & masks[other, 2]\n",
        _PREFILTER,
        simulated=True,
    ),
    Mutant(
        "a block's mask whose first word is cleared",
        "pipeline/cpu/blocks.py",
        "                masks[block, 0] &= words[0][row]",
        "                masks[block, 0] = _U(0)",
        _PREFILTERS,
    ),
    Mutant(
        "a row beyond the last, which has all bits",
        "pipeline/cuda/items.py",
        " and row + r * ITEM_THREADS < end:\n                            _stage(",
        ":\n                            _stage(",
        ("tests/pipeline/cuda/test_gpu_batches.py", "-k", "all_bits"),
        simulated=True,
    ),
)


def survives(mutant: Mutant | None, tests: tuple[str, ...], *, simulated: bool) -> bool:
    """Whether tests pass with a mistake, or without any, in a copy of the code."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        copy.mkdir()
        for name in _COPIED:
            source = _ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, copy / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy(source, copy)
        if mutant is not None:
            file = copy / mutant.file
            text = file.read_text()
            if text.count(mutant.right) != 1:
                sys.exit(f"{mutant.file} has {mutant.right!r} {text.count(mutant.right)} times, and not once")
            file.write_text(text.replace(mutant.right, mutant.wrong))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "gpu or not gpu", *tests]
        environment = os.environ | {"PYTHONPATH": str(copy), "XDG_CACHE_HOME": folder}
        if simulated:
            environment["NUMBA_ENABLE_CUDASIM"] = "1"
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(f"the tests did not run:\n{done.stdout}{done.stderr}")
        return done.returncode == 0


def main() -> None:
    """Try all; exit code 1 if one survives."""
    groups = {(mutant.tests, mutant.simulated) for mutant in MUTANTS}
    for tests, simulated in sorted(groups):
        if not survives(None, tests, simulated=simulated):
            sys.exit(f"{' '.join(tests)} fails without a mistake, too")
    surviving = 0
    for mutant in MUTANTS:
        alive = survives(mutant, mutant.tests, simulated=mutant.simulated)
        surviving += alive
        print("SURVIVES" if alive else "fails   ", mutant.name, flush=True)
    sys.exit(f"{surviving} of {len(MUTANTS)} mistakes fail no test" if surviving else 0)


if __name__ == "__main__":
    main()
