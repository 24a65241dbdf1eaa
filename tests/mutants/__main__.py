"""`python -m mutants [WORD ...]`, in `tests`: makes mistakes, all or those with a word in the name, and runs tests.

Prints what kills each mutant: the first test that fails. Exit code 1 if one survives.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mutants import MUTANTS
from mutants.mutant import Mutant

_ROOT = Path(__file__).parents[2]
_LEFT_OUT = {".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "bench-results", "site"}
_KERNEL = re.compile(r"^@(kernel|brief_kernel|inlined|lent)\b", re.MULTILINE)
# Which module a compiled kernel is of
_OF_MODULE = re.compile(r"-(tagmatch(?:\.\w+)+)-\d+\.py")
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


class Outcome(NamedTuple):
    """What became of tests: the first that failed, if one did, and how; or that they did not run."""

    failed: str
    reason: str
    seconds: float
    has_run: bool
    output: str


def outcome(mutant: Mutant | None, tests: str, *, simulated: bool) -> Outcome:
    """Run tests in a copy of the code, with a mistake if one is given."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(_ROOT, Path(folder, "copy"), symlinks=True, ignore=_left_out))
        environment = os.environ | {"PYTHONPATH": str(copy), "TEST_SEED": "1", "COLUMNS": "500"}
        _append(copy / "tests/conftest.py", _SETTINGS)
        # To compile all kernels, in whatever file the mistake is, would take minutes
        _append(copy / "model/kernels/jit.py", f"\n\ndef _code_digest() -> str:\n    return {_digest()!r}\n")
        if mutant is not None:
            (copy / mutant.file).write_text(mutant.mutated(_ROOT))
            environment |= {"XDG_CACHE_HOME": str(_own_kernels(Path(folder), mutant)), "NUMBA_CACHE_DIR": ""}
        if simulated:
            environment["NUMBA_ENABLE_CUDASIM"] = "1"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed", "1"]
        command += ["-m", "gpu and not slow" if simulated else "not gpu and not nightly", *tests.split()]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    found = _FAILED.search(done.stdout)
    failed, reason = (found[1], found[2] or "") if found else ("", "")
    output = done.stdout + done.stderr
    return Outcome(failed, reason, time.monotonic() - began, done.returncode == (1 if found else 0), output)


def _left_out(folder: str, names: list[str]) -> set[str]:
    return _LEFT_OUT & set(names) if Path(folder) == _ROOT else set()


@cache
def _kernels() -> Path:
    """Where the kernels of this code are, compiled."""
    from tagmatch.model.kernels.jit import cache_folder

    found = cache_folder()
    assert found is not None
    return Path(found)


def _append(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


def _digest() -> str:
    """What says of which code the compiled kernels are."""
    return _kernels().name.rpartition("-")[2]


def _own_kernels(folder: Path, mutant: Mutant) -> Path:
    """The kernels, without those that a mistake may be compiled into: of the module, and of what imports it."""
    home = folder / "kernels"
    kernels = home / "tagmatch" / _kernels().name
    kernels.mkdir(parents=True)
    has_kernels = _KERNEL.search((_ROOT / mutant.file).read_text())
    changed = _importing(mutant.file) if has_kernels else frozenset()
    for file in _kernels().iterdir():
        module = _OF_MODULE.search(file.name)
        if module is not None and module[1] not in changed:
            with suppress(FileNotFoundError):  # others may compile, too
                shutil.copy(file, kernels)
    return home


@cache
def _importing(file: str) -> frozenset[str]:
    import grimp

    module = "tagmatch." + file.removesuffix(".py").removeprefix("tagmatch/").replace("/", ".")
    return frozenset({module} | grimp.build_graph("tagmatch", cache_dir=None).find_downstream_modules(module))


def killed_by(mutant: Mutant) -> tuple[str, bool]:
    """A line on what became of a mutant, and whether a test has killed it."""
    ran = outcome(mutant, mutant.tests, simulated=mutant.simulated)
    seconds = f"({ran.seconds:.0f} s)"
    if not ran.has_run:
        return f"{mutant.name}: THE TESTS DID NOT RUN {seconds}\n{ran.output}", False
    if not ran.failed:
        return f"{mutant.name}: SURVIVES {mutant.tests} {seconds}", False
    if _OTHER_REASON.match(ran.reason):
        return f"{mutant.name}: FAILS FOR ANOTHER REASON, {ran.failed} {seconds}: {ran.reason}", False
    return f"{mutant.name}: killed by {ran.failed} {seconds}", True


def main() -> None:
    """Try all."""
    sys.path.insert(0, str(_ROOT))
    words = sys.argv[1:]
    mutants = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    for mutant in mutants:
        mutant.mutated(_ROOT)
    _kernels()
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        groups = list(dict.fromkeys((mutant.tests, mutant.simulated) for mutant in mutants))
        without = [threads.submit(outcome, None, tests, simulated=simulated) for tests, simulated in groups]
        for (tests, _), future in zip(groups, without, strict=True):
            ran = future.result()
            if ran.failed or not ran.has_run:
                sys.exit(f"{tests} fails without a mistake, too:\n{ran.output}")
        print(f"no test fails without a mistake ({time.monotonic() - began:.0f} s)", flush=True)
        alive = 0
        for line, is_killed in threads.map(killed_by, mutants):
            print(line, flush=True)
            alive += not is_killed
    print(f"{len(mutants) - alive} of {len(mutants)} mutants were killed, in {time.monotonic() - began:.0f} s")
    sys.exit(1 if alive else 0)


if __name__ == "__main__":
    main()
