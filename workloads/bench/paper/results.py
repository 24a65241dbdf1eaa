"""What an experiment gives: panels of measured and published values, written as JSON and as Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tagmatch.files.whole import write_whole
from tagmatch.workloads.bench.report import Line, circumstances

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tagmatch.workloads.bench.timing import Samples


@dataclass(frozen=True, slots=True)
class Value:
    """One value of one system.

    Attributes
    ----------
    system : str
    x : str or float
        Place on the panel's axis: a label, or a number where the panel has lines.
    value : float
    samples : tuple of float
        The repeated measurements that `value` is the median of.
    """

    system: str
    x: str | float
    value: float
    samples: tuple[float, ...] = ()


@dataclass(slots=True)
class Panel:
    """One diagram and one table.

    Attributes
    ----------
    title, x_label, unit : str
        `unit` is that of all values.
    style : "bars" or "lines"
        Lines have numbers on the x axis.
    log, log_x : bool
        Whether the axis of the values is logarithmic, and whether that of a panel of lines is.
    values, published : list of Value
        Measured here, and printed in the paper.
    """

    title: str
    x_label: str
    unit: str
    style: Literal["bars", "lines"] = "bars"
    log: bool = True
    log_x: bool = True
    values: list[Value] = field(default_factory=list)
    published: list[Value] = field(default_factory=list)

    def add(self, system: str, x: str | float, value: float | Samples) -> None:
        """Append a value, or the median of repeated measurements."""
        if isinstance(value, int | float):
            self.values.append(Value(system, x, float(value)))
        else:
            self.values.append(Value(system, x, value.median, value.values))

    def add_ratios(self, panel: Panel, base: str | float) -> None:
        """Append how many times its system's value at `base` each value of another panel is."""
        bases = {value.system: value.value for value in panel.values if value.x == base}
        for value in panel.values:
            self.add(value.system, value.x, value.value / bases[value.system])


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
    """All that an experiment found.

    Attributes
    ----------
    name : str
        As in the paper: `table1`, `fig2` ...
    title : str
    about : str
        What is measured, and where it differs from the paper; Markdown.
    parameters : dict
    panels : list of Panel
    answers : list of Answers
    lines : list of Line
        Single values, some of them with targets.
    unavailable : dict of str to str
        Systems that could not run here, and why.
    """

    name: str
    title: str
    about: str
    parameters: dict[str, Any]
    panels: list[Panel] = field(default_factory=list)
    answers: list[Answers] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)
    circumstances: dict[str, Any] = field(default_factory=circumstances)

    def panel(self, *args: Any, **options: Any) -> Panel:
        """Append a panel."""
        self.panels.append(Panel(*args, **options))
        return self.panels[-1]

    def faults(self) -> list[str]:
        """Describe the answers that are not as promised."""
        return [
            f"{self.name}, {found.where}: {found.system} gave {found.wrong} wrong keys and missed {found.missing}"
            for found in self.answers
            if found.fault
        ]

    def write(self, folder: Path) -> None:
        """Write NAME.json and NAME.md, which shows NAME.png."""
        with write_whole(folder / f"{self.name}.json") as part:
            whole = asdict(self) | {"lines": [line.facts() for line in self.lines]}
            part.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        with write_whole(folder / f"{self.name}.md") as part:
            part.write_text(self.markdown())

    def markdown(self, images: str = "") -> str:
        """Return a section with the plot, a table for each panel, and what is to be said of the answers.

        Parameters
        ----------
        images : str
            Folder of the plot, as a prefix.
        """
        parts = [f"## {self.title}"]
        if changed := self.circumstances["changed_files"]:
            commit = self.circumstances["commit"]
            parts.append(f"**Not reproducible**: measured at {commit} with changes to {', '.join(changed)}.")
        parts += [self.about, f"![{self.title}]({images}{self.name}.png)"]
        if self.lines:
            parts.append(_table_of_lines(self.lines))
        for panel in self.panels:
            parts.append(f"**{panel.title}**, {panel.unit}")
            parts.append(_markdown_table(panel))
        if self.unavailable:
            parts.append(
                "Not run here: " + "; ".join(f"{name} ({why})" for name, why in self.unavailable.items()) + "."
            )
        if self.answers:
            parts.append(_answers_in_words(self.answers))
        return "\n\n".join(parts) + "\n"


def number(value: float) -> str:
    """Write a number with about three digits."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - _magnitude(value))}f}"


def _magnitude(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def place(x: str | float) -> str:
    """Write a place on the x axis."""
    if isinstance(x, str):
        return x
    return f"{x:,.0f}" if x == round(x) else f"{x:g}"


def percent(share: float) -> str:
    """Write a share in percent."""
    return f"{100 * share:.0f} %"


def _markdown_table(panel: Panel) -> str:
    columns = list(dict.fromkeys(found.x for found in panel.values))
    if panel.style == "lines":
        columns = sorted({found.x for found in (*panel.values, *panel.published)}, key=float)
    lines = [[f"{panel.x_label}", *map(place, columns)], ["---", *("--:" for _ in columns)]]
    lines += _rows(panel.values, columns, "")
    lines += _rows(panel.published, columns, "paper: ")
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _table_of_lines(lines: Iterable[Line]) -> str:
    rows = ["|  | measured | target |  |", "| --- | --: | --- | --- |"]
    rows += [f"| {line.what} | {line} | {line.target or ''} | {line.verdict} |" for line in lines]
    return "\n".join(rows)


def _rows(values: Iterable[Value], columns: list[str | float], prefix: str) -> list[list[str]]:
    rows: dict[str, dict[str | float, str]] = {}
    for found in values:
        rows.setdefault(found.system, {})[found.x] = number(found.value)
    return [[prefix + system, *(cells.get(x, "") for x in columns)] for system, cells in rows.items()]


def _answers_in_words(answers: list[Answers]) -> str:
    exact = [found for found in answers if found.exact]
    parts = []
    if exact:
        wrong, missing = (sum(getattr(found, name) for found in exact) for name in ("wrong", "missing"))
        keys = sum(found.keys for found in exact)
        fewest, most = (extreme(found.queries for found in exact) for extreme in (min, max))
        compared = f"{most:,} queries" if fewest == most else f"{fewest:,} to {most:,} queries at a time"
        parts.append(f"Exact systems gave {keys:,} keys to {compared}: {wrong:,} wrong, {missing:,} missing.")
    inexact: dict[str, list[int]] = {}
    for found in answers:
        if not found.exact:
            counts = inexact.setdefault(found.system, [0, 0, 0])
            for i, name in enumerate(("keys", "wrong", "missing")):
                counts[i] += getattr(found, name)
    for system, (keys, wrong, missing) in inexact.items():
        share = wrong / keys if keys else 0.0
        parts.append(f"Of the {keys:,} keys of {system}, {wrong:,} ({share:.0%}) were wrong; {missing:,} were missing.")
    return " ".join(parts)
