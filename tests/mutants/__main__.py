"""`python -m mutants [WORD ...]`, in `tests`: makes mistakes, all or those with a word in the name, and runs tests.

Prints what kills each mutant: the first test that fails. Exit code 1 if one survives.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutants import MUTANTS
from mutants.mutant import Mutant

_ROOT = Path(__file__).parents[2]
_LEFT_OUT = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "bench-results", "site"}
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py::.*?)(?: - (.*))?$", re.MULTILINE)
# Examples that fail need not become small ones, and kernels may have to be compiled
_SETTINGS = """

from hypothesis import Phase

settings.register_profile("mutants", settings.get_profile("dev"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutants")
_MOST_TEST_S = _MOST_FILE_S = 10**9
"""
# Failures that are no checks
_OTHER_REASON = re.compile(r"[\w.]*(Syntax|Import|ModuleNotFound|Name|Typing|Lowering)Error\b|Failed: Timeout")


def outcome(tests: str, mutant: Mutant | None = None) -> tuple[str, bool]:
    """The outcome of tests in a copy of the code, with a mistake if one is given, and whether one failed as it should.

    Without a mistake none should.
    """
    began, simulated = time.monotonic(), "/test_gpu_" in tests
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(_ROOT, Path(folder, "copy"), symlinks=True, ignore=_left_out))
        paths = os.pathsep.join(map(str, (copy, copy / "bench")))
        environment = os.environ | {"PYTHONPATH": paths, "TEST_SEED": "1", "COLUMNS": "500"}
        _append(copy / "tests/conftest.py", _SETTINGS)
        if mutant is not None:
            (copy / mutant.file).write_text(mutant.mutated(_ROOT))
        environment |= {"NUMBA_ENABLE_CUDASIM": "1"} if simulated else {}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed", "1"]
        command += ["-m", "gpu and not slow" if simulated else "not gpu and not nightly", *tests.split()]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    found, seconds = _FAILED.search(done.stdout), f"({time.monotonic() - began:.0f} s)"
    if done.returncode != (1 if found else 0):
        return f"{tests}: THE TESTS DID NOT RUN {seconds}\n{done.stdout}{done.stderr}", False
    if found is None:
        return f"SURVIVES {tests} {seconds}", mutant is None
    if mutant is None or _OTHER_REASON.match(found[2] or ""):
        return f"FAILS FOR ANOTHER REASON, {found[1]} {seconds}: {found[2]}", False
    return f"killed by {found[1]} {seconds}", True


def _left_out(folder: str, names: list[str]) -> set[str]:
    return _LEFT_OUT & set(names) if Path(folder) == _ROOT else set()


def _append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def main() -> None:
    sys.path.insert(0, str(_ROOT))
    words = sys.argv[1:]
    mutants = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    for mutant in mutants:
        mutant.mutated(_ROOT)
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for line, is_sound in threads.map(outcome, dict.fromkeys(mutant.tests for mutant in mutants)):
            if not is_sound:
                sys.exit(f"without a mistake, too: {line}")
        print(f"no test fails without a mistake ({time.monotonic() - began:.0f} s)", flush=True)
        killed = 0
        for mutant, (line, is_killed) in zip(mutants, threads.map(lambda m: outcome(m.tests, m), mutants), strict=True):
            print(f"{mutant.name}: {line}", flush=True)
            killed += is_killed
    print(f"{killed} of {len(mutants)} mutants were killed, in {time.monotonic() - began:.0f} s")
    sys.exit(killed < len(mutants))


if __name__ == "__main__":
    main()
