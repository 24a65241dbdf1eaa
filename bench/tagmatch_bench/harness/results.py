"""What every benchmark gives: rows, panels, answers compared with the right ones, and the circumstances."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tagmatch import TagMatchError, __version__
from tagmatch.model.options import available_threads
from tagmatch_bench.harness.timing import Samples
from tagmatch_bench.systems.matcher import lists_in, wrong_and_missing

_PACKAGES = ("numpy", "numba", "pyarrow")

# The checkout that this code is in, if it is in one, and its files that may change a number
_CHECKOUT = Path(__file__).parent
_WORDS = ("docs", "tests", "examples", "*.md", "bench/results")
_MEASURED = (":/", *(f":(top,exclude){each}" for each in _WORDS))


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
        "versions": {"tagmatch": __version__, "python": platform.python_version()}
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
    """Return the commit of the checkout that this code is in; `None` outside of one."""
    return _git("rev-parse", "HEAD").strip() or None


def changed_files() -> list[str]:
    """Return the files that differ from the commit, except those that no benchmark runs."""
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
            "make Git work there, or record results that name none with --allow-changes"
        ) from None


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
class Row:
    """One value."""

    what: str  # a system, or the measured thing
    value: float
    unit: str
    target: Target | None = None
    # the repeated measurements that `value` is the median of, or the mean where the figure says so
    samples: tuple[float, ...] = ()
    x: str | float = ""  # place on a panel's axis, if it is in one: a label, or a number where the panel has lines

    @classmethod
    def of(cls, what: str, value: float | Samples, unit: str, **more: Any) -> Row:
        """Make a row of a value, or of the median of repeated measurements; `more` are other attributes."""
        if isinstance(value, int | float):
            return cls(what, float(value), unit, **more)
        return cls(what, value.median, unit, samples=value.values, **more)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; `None` without a target."""
        return None if self.target is None else self.target.met_by(self.value)

    @property
    def failed(self) -> bool:
        """Whether a required target is missed."""
        return self.target is not None and self.target.required and not self.met

    @property
    def verdict(self) -> str:
        """Whether the target is met, in words; empty without a target."""
        return {None: "", True: "met", False: "not met"}[self.met]

    def __str__(self) -> str:
        digits = ",.0f" if abs(self.value) >= 100 or self.value == int(self.value) else "#.3g"
        return f"{self.value:{digits}} {self.unit}"


@dataclass(slots=True)
class Panel:
    """One diagram and one table."""

    title: str
    x_label: str
    unit: str  # of all rows
    style: Literal["bars", "lines"] = "bars"  # lines have numbers on the x axis
    log: bool = True  # whether the axis of the values is logarithmic
    log_x: bool = True  # whether that of the places is, in a panel of lines
    rows: list[Row] = field(default_factory=list)  # measured here
    published: list[Row] = field(default_factory=list)  # printed in the paper

    def add(self, system: str, x: str | float, value: float | Samples) -> None:
        """Append a value, or the median of repeated measurements."""
        self.rows.append(Row.of(system, value, self.unit, x=x))

    def add_all(self, values: Mapping[str, Samples], x: str | float) -> None:
        """Append what each system has at one place."""
        for system, value in values.items():
            self.add(system, x, value)

    def add_ratios(self, panel: Panel, base: str | float) -> None:
        """Append how many times its system's value at `base` each value of another panel is."""
        bases = {row.what: row.value for row in panel.rows if row.x == base}
        for row in panel.rows:
            self.rows.append(Row(row.what, row.value / bases[row.what], self.unit, x=row.x))


@dataclass(frozen=True, slots=True)
class Answers:
    """How a system's answers to some queries compare with the right ones, counted in keys."""

    where: str
    system: str
    exact: bool
    queries: int
    keys: int
    wrong: int
    missing: int

    @property
    def fault(self) -> bool:
        """Whether the system did not do what it promises."""
        return self.missing > 0 or (self.exact and self.wrong > 0)


@dataclass(slots=True)
class Result:
    """All that a benchmark found; `harness.report` writes it."""

    name: str  # as in the paper: `table1`, `fig2` ...; of others, that of the command
    parameters: dict[str, Any]
    title: str = ""
    about: str = ""  # the measurement, and its differences from the paper; Markdown
    panels: list[Panel] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    lines: list[Row] = field(default_factory=list)  # single values, some of them with targets
    unavailable: dict[str, str] = field(default_factory=dict)  # systems that could not run here, and why
    plans: dict[str, str] = field(default_factory=dict)  # how Spark runs each system, if it does
    circumstances: dict[str, Any] = field(default_factory=circumstances)

    def panel(self, *args: Any, **options: Any) -> Panel:
        """Append a panel."""
        self.panels.append(Panel(*args, **options))
        return self.panels[-1]

    def add(self, what: str, value: float | Samples, unit: str, target: Target | None = None) -> None:
        """Append a line: a value, or the median of repeated measurements."""
        self.lines.append(Row.of(what, value, unit, target=target))

    def compare(
        self,
        where: str,
        system: str,
        given: Any,
        right: Any,
        *,
        exact: bool = True,
        may_differ: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Append how answers compare with the right ones, except for a query's keys that may be there or not."""
        compared, found = wrong_and_missing(given, right, may_differ), lists_in(given)
        self.answers.append(Answers(where, system, exact, len(found), len(found.values), *compared))

    def faults(self) -> list[str]:
        """Describe the lines that miss a required target, and the answers that are not as promised."""
        return [f"{self.name}: {line.what} {line}" for line in self.lines if line.failed] + [
            f"{self.name}, {found.where}: {found.system} gave {found.wrong} wrong keys and missed {found.missing}"
            for found in self.answers
            if found.fault
        ]


_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of one value for each seed, with a confidence interval of 95 % by Student's distribution."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean of the values."""
        return statistics.fmean(self.values)

    @property
    def half_width(self) -> float:
        """Half of the interval's width; 0 of one value, which says nothing."""
        from scipy.special import stdtrit

        if len(self.values) == 1:
            return 0.0
        error = statistics.stdev(self.values) / math.sqrt(len(self.values))
        return error * float(stdtrit(len(self.values) - 1, (1 + _CONFIDENCE) / 2))

    def over(self, other: Mean) -> Mean:
        """The mean of the ratios, seed by seed; infinite where the other is 0."""
        pairs = zip(self.values, other.values, strict=True)
        return Mean(tuple(one / another if another else float("inf") for one, another in pairs))

    def row(self, what: str, unit: str, x: str | float) -> Row:
        """A row of the mean, which keeps all values."""
        return Row(what, self.mean, unit, samples=self.values, x=x)
