"""Memory of a process, as Linux counts it: what it has now, the most that it has had, and how to forget that."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def resident(field: Literal["VmRSS", "VmHWM"], pid: int | Literal["self"] = "self") -> int:
    """Return a process's resident memory in bytes: now, or its peak.

    Raises
    ------
    ProcessLookupError, FileNotFoundError
        There is no such process, or it has ended, whether or not its parent has taken note.
    OSError
        This system does not say.
    """
    status = dict(line.split(":", 1) for line in _of(pid, "status").read_text().splitlines())
    if field in status:
        return int(status[field].split()[0]) << 10
    if status.get("State", "").split()[:1] in (["Z"], ["X"]):
        raise ProcessLookupError(f"process {pid} has ended")
    raise OSError(f"{_of(pid, 'status')} has no {field}")


def forget_peak(pid: int | Literal["self"] = "self") -> None:
    """Have the kernel forget the peak so far; OSError: it cannot, or there is no such process."""
    _of(pid, "clear_refs").write_text("5")


def _of(pid: int | Literal["self"], file: str) -> Path:
    return Path("/proc", str(pid), file)
