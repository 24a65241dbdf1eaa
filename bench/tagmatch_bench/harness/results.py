"""What every benchmark gives: rows, those of a diagram in a panel, and how answers compare with the right ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tagmatch_bench.harness.circumstances import circumstances

if TYPE_CHECKING:
    from tagmatch_bench.harness.timing import Samples


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
    """One value.

    Attributes
    ----------
    what : str
        A system, or what was measured.
    value : float
    unit : str
    target : Target, optional
    samples : tuple of float
        The repeated measurements that `value` is the median of, or the mean where the figure says so.
    section : str
        The heading that it stands under, if there are any.
    x : str or float
        Place on a panel's axis, if it is in one: a label, or a number where the panel has lines.
    """

    what: str
    value: float
    unit: str
    target: Target | None = None
    samples: tuple[float, ...] = ()
    section: str = ""
    x: str | float = ""

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
    """One diagram and one table.

    Attributes
    ----------
    title, x_label, unit : str
        `unit` is that of all rows.
    style : "bars" or "lines"
        Lines have numbers on the x axis.
    log, log_x : bool
        Whether the axis of the values is logarithmic, and whether that of a panel of lines is.
    rows, published : list of Row
        Measured here, and printed in the paper.
    """

    title: str
    x_label: str
    unit: str
    style: Literal["bars", "lines"] = "bars"
    log: bool = True
    log_x: bool = True
    rows: list[Row] = field(default_factory=list)
    published: list[Row] = field(default_factory=list)

    def add(self, system: str, x: str | float, value: float | Samples) -> None:
        """Append a value, or the median of repeated measurements."""
        self.rows.append(Row.of(system, value, self.unit, x=x))

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
    """All that a benchmark found; `harness.report` writes it.

    Attributes
    ----------
    name : str
        As in the paper: `table1`, `fig2` ...; of others, that of the command.
    parameters : dict
    title : str
    about : str
        What is measured, and where it differs from the paper; Markdown.
    panels : list of Panel
    answers : list of Answers
    lines : list of Row
        Single values, some of them with targets.
    unavailable : dict of str to str
        Systems that could not run here, and why.
    plans : dict of str to str
        How Spark runs each system, if it does.
    circumstances : dict
    """

    name: str
    parameters: dict[str, Any]
    title: str = ""
    about: str = ""
    panels: list[Panel] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    lines: list[Row] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, Any] = field(default_factory=circumstances)

    def panel(self, *args: Any, **options: Any) -> Panel:
        """Append a panel."""
        self.panels.append(Panel(*args, **options))
        return self.panels[-1]

    def add(
        self, what: str, value: float | Samples, unit: str, target: Target | None = None, *, section: str = ""
    ) -> None:
        """Append a line: a value, or the median of repeated measurements."""
        self.lines.append(Row.of(what, value, unit, target=target, section=section))

    def faults(self) -> list[str]:
        """Describe the lines that miss a required target, and the answers that are not as promised."""
        return [f"{line.section or self.name}: {line.what} {line}" for line in self.lines if line.failed] + [
            f"{self.name}, {found.where}: {found.system} gave {found.wrong} wrong keys and missed {found.missing}"
            for found in self.answers
            if found.fault
        ]
