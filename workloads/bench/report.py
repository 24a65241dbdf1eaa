"""What a benchmark found: a table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tagmatch.files.whole import write_whole
from tagmatch.model.options import available_threads
from tagmatch.model.version import VERSION

if TYPE_CHECKING:
    from rich.console import Console

    from tagmatch.workloads.bench.timing import Samples

_PACKAGES = ("numpy", "numba", "pyarrow")

# The checkout that this code is in, where it is in one, and of this what may change a number
_CHECKOUT = Path(__file__).parent
_MEASURED = (":/", ":(top,exclude)docs", ":(top,exclude)tests", ":(top,exclude)examples", ":(top,exclude)*.md")


@dataclass(frozen=True, slots=True)
class Target:
    """What a value should reach: at least `limit`, or at most; `required` if anything else is an error."""

    limit: float
    goal: float | None = None
    at_most: bool = False
    required: bool = False

    def met_by(self, value: float) -> bool:
        """Whether the value reaches the limit."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {self.limit:g}" + ("" if self.goal is None else f", goal {sign} {self.goal:g}")


@dataclass(frozen=True, slots=True)
class Line:
    """One measured value."""

    what: str
    value: float
    unit: str
    target: Target | None = None
    samples: tuple[float, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether the target is met; `None` without a target."""
        return None if self.target is None else self.target.met_by(self.value)

    @property
    def verdict(self) -> str:
        """Whether the target is met, in words; empty without a target."""
        return {None: "", True: "met", False: "not met"}[self.met]

    def facts(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return asdict(self) | {"met": self.met}

    def __str__(self) -> str:
        digits = ",.0f" if abs(self.value) >= 100 or self.value == int(self.value) else "#.3g"
        return f"{self.value:{digits}} {self.unit}"


def circumstances() -> dict[str, Any]:
    """Return the date, commit and what differs from it, machine and versions that numbers belong to."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "changed_files": changed_files(),
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


@dataclass(slots=True)
class Report:
    """Measured values under headings, and what they were measured with."""

    command: str
    parameters: dict[str, Any]
    sections: dict[str, list[Line]] = field(default_factory=dict)
    circumstances: dict[str, Any] = field(default_factory=circumstances)

    def add(self, section: str, what: str, value: float | Samples, unit: str, target: Target | None = None) -> None:
        """Append a value, or the median of repeated measurements."""
        if isinstance(value, int | float):
            line = Line(what, float(value), unit, target)
        else:
            line = Line(what, value.median, unit, target, value.values)
        self.sections.setdefault(section, []).append(line)

    def failures(self) -> list[str]:
        """Describe the values that miss a required target."""
        return [
            f"{section}: {line.what} {line}"
            for section, lines in self.sections.items()
            for line in lines
            if line.target is not None and line.target.required and not line.met
        ]

    def print(self, console: Console) -> None:
        """Print the table."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(f"tagmatch-bench {self.command}", no_wrap=True)
        table.add_column("measured", no_wrap=True, justify="right")
        table.add_column("target", no_wrap=True)
        table.add_column("", no_wrap=True)
        for section, lines in self.sections.items():
            table.add_row(f"[bold]{section}")
            for line in lines:
                colour = "green" if line.met else "red"
                table.add_row(f"  {line.what}", str(line), str(line.target or ""), f"[{colour}]{line.verdict}")
        console.print(table)
        console.print(f"\n{self._caption()}", highlight=False)

    def write_json(self, path: Path) -> None:
        """Write everything, with the machine, versions and commit."""
        sections = {name: [line.facts() for line in lines] for name, lines in self.sections.items()}
        whole = {"command": self.command, "parameters": self.parameters, **self.circumstances, "sections": sections}
        with write_whole(path) as part:
            part.write_text(json.dumps(whole, indent=2) + "\n")

    def _caption(self) -> str:
        facts, machine, versions = self.circumstances, self.circumstances["machine"], self.circumstances["versions"]
        return (
            f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['memory_gib']} GiB · "
            + " · ".join(f"{name} {number}" for name, number in versions.items())
            + f"\n{facts['date']} · commit {facts['commit'] or 'unknown'}"
            + (" WITH CHANGES THAT ARE NOT COMMITTED · " if facts["changed_files"] else " · ")
            + " · ".join(f"{name} {value}" for name, value in self.parameters.items())
        )


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
    """Return the commit of the checkout that this code is in; `None` outside of one."""
    try:
        return _git("rev-parse", "HEAD").strip()
    except (OSError, subprocess.SubprocessError):
        return None


def changed_files() -> list[str]:
    """Return the files that are not as they are in the commit, but for those that no benchmark runs."""
    try:
        found = _git("diff", "--name-only", "HEAD", "--", *_MEASURED)
        found += _git("ls-files", "--others", "--exclude-standard", "--full-name", "--", *_MEASURED)
    except (OSError, subprocess.SubprocessError):
        return []
    return found.splitlines()


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(_CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
