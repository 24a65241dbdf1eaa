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
    status = _status(pid)
    if field in status:
        return int(status[field].split()[0]) << 10
    # A process that is ending has given its memory back before its state says so
    if field in _status("self"):
        raise ProcessLookupError(f"process {pid} has ended")
    raise OSError(f"{_of(pid, 'status')} has no {field}")


def forget_peak(pid: int | Literal["self"] = "self") -> None:
    """Have the kernel forget the peak so far; OSError: it cannot, or there is no such process."""
    _of(pid, "clear_refs").write_text("5")


def _status(pid: int | Literal["self"]) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _of(pid, "status").read_text().splitlines())


def _of(pid: int | Literal["self"], file: str) -> Path:
    return Path("/proc", str(pid), file)
