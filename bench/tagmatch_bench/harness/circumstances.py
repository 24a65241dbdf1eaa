"""What numbers belong to: the date, the commit and what differs from it, the machine and the versions."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tagmatch.model.errors import TagMatchError
from tagmatch.model.options import available_threads
from tagmatch.model.version import VERSION

_PACKAGES = ("numpy", "numba", "pyarrow")

# The checkout that this code is in, where it is in one, and of this what may change a number
_CHECKOUT = Path(__file__).parent
_MEASURED = (":/", ":(top,exclude)docs", ":(top,exclude)tests", ":(top,exclude)examples", ":(top,exclude)*.md")


def circumstances() -> dict[str, Any]:
    """Return the date, commit and what differs from it, machine and versions that numbers belong to."""
    try:
        committed = {"commit": commit(), "changed_files": changed_files()}
    except TagMatchError:
        committed = {"commit": None, "changed_files": []}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **committed,
        "machine": {
            "cpu": _cpu_model(),
            "gpus": _gpus(),
            "cores": os.cpu_count(),
            "usable_cores": available_threads(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "system": platform.platform(),
        },
        "versions": {"tagmatch": VERSION, "python": platform.python_version()}
        | {name: version(name) for name in _PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _gpus() -> list[str]:
    """Return name and driver of each NVIDIA GPU."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def commit() -> str | None:
    """Return the commit of the checkout that this code is in; `None` outside of one.

    Raises
    ------
    TagMatchError
        It is in one, of which Git cannot tell.
    """
    return _git("rev-parse", "HEAD").strip() or None


def changed_files() -> list[str]:
    """Return the files that are not as they are in the commit, but for those that no benchmark runs.

    Files that nobody has added count, too, unless Git ignores them. Raises what `commit` does.
    """
    found = _git("diff", "--name-only", "HEAD", "--", *_MEASURED)
    found += _git("ls-files", "--others", "--exclude-standard", "--full-name", "--", *_MEASURED)
    return found.splitlines()


def _git(*arguments: str) -> str:
    """Return what Git prints, nothing outside of a checkout."""
    if not any((folder / ".git").exists() for folder in _CHECKOUT.parents):
        return ""
    command = ["git", "--no-optional-locks", "-C", str(_CHECKOUT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = " ".join(str(getattr(error, "stderr", None) or error).split())
        raise TagMatchError(
            f"results would name no commit: in {_CHECKOUT}, `git {arguments[0]}` fails ({said}); "
            "see that Git works there, or record results that name none with --allow-changes"
        ) from None
