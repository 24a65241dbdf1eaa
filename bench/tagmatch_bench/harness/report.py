"""Writes a result: JSON for programs, Markdown, a table on the console and plots for people."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tagmatch.files.formats import write_whole
from tagmatch_bench.harness.results import Answers, Panel, Result, Row


def write_json(facts: dict[str, Any], path: Path) -> None:
    """Write the facts of a result."""
    with write_whole(path) as part:
        part.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def facts_by_panel(result: Result) -> dict[str, Any]:
    """Return panels and lines, with all that they belong to."""
    facts = {
        "name": result.name,
        "title": result.title,
        "about": result.about,
        "parameters": result.parameters,
        "panels": [_panel_facts(panel) for panel in result.panels],
        "answers": [asdict(found) for found in result.answers],
        "lines": [_line_facts(line) for line in result.lines],
        "unavailable": result.unavailable,
        "circumstances": result.circumstances,
    }
    return facts | ({"plans": result.plans} if result.plans else {})


def _line_facts(line: Row) -> dict[str, Any]:
    facts = {name: getattr(line, name) for name in ("what", "value", "unit", "target", "samples", "met")}
    return facts | {"target": None if line.target is None else asdict(line.target)}


def _panel_facts(panel: Panel) -> dict[str, Any]:
    facts = {name: getattr(panel, name) for name in ("title", "x_label", "unit", "style", "log", "log_x")}
    return facts | {"values": [*map(_value_facts, panel.rows)], "published": [*map(_value_facts, panel.published)]}


def _value_facts(row: Row) -> dict[str, Any]:
    return {"system": row.what, "x": row.x, "value": row.value, "samples": row.samples}


def result_of(facts: Mapping[str, Any]) -> Result:
    """A result as it was before it was written, without targets."""

    def rows(panel: Mapping[str, Any], kind: str) -> list[Row]:
        return [_row(each["system"], panel["unit"], each, x=each["x"]) for each in panel[kind]]

    panels = []
    for each in facts["panels"]:
        looks = {field: each[field] for field in ("title", "x_label", "unit", "style", "log", "log_x")}
        panels.append(Panel(**looks, rows=rows(each, "values"), published=rows(each, "published")))
    return Result(
        **{name: facts[name] for name in ("name", "parameters", "title", "about", "unavailable", "circumstances")},
        panels=panels,
        answers=[Answers(**each) for each in facts["answers"]],
        lines=[_row(each["what"], each["unit"], each) for each in facts["lines"]],
    )


def _row(what: str, unit: str, facts: Mapping[str, Any], **more: Any) -> Row:
    return Row(what, facts["value"], unit, samples=tuple(facts["samples"]), **more)


def join(result: Result, others: Iterable[Result]) -> Result:
    """Put what others found in a result, panels of one title together; of one thing, what the last one found."""
    panels = {each.title: each for each in result.panels}
    for other in others:
        for panel in other.panels:
            whole = panels.setdefault(panel.title, replace(panel, rows=[]))
            measured = {(row.what, row.x): row for row in (*whole.rows, *panel.rows)}
            whole.rows = list(measured.values())
        result.answers = list({(each.where, each.system): each for each in (*result.answers, *other.answers)}.values())
        result.lines = list({line.what: line for line in (*result.lines, *other.lines)}.values())
        result.unavailable |= other.unavailable
    result.panels = list(panels.values())
    return result


def markdown(result: Result, images: str = "") -> str:
    """Return a section with the plot, a table for each panel, and a remark on the answers."""
    parts = [f"## {result.title}"]
    if changed := result.circumstances["changed_files"]:
        commit = result.circumstances["commit"]
        parts.append(f"**Not reproducible**: measured at {commit} with changes to {', '.join(changed)}.")
    parts += [result.about, f"![{result.title}]({images}{result.name}.png)"]
    if result.lines:
        parts.append(_table_of_lines(result.lines))
    for panel in result.panels:
        parts.append(f"**{panel.title}**, {panel.unit}")
        parts.append(_table_of_panel(panel))
    if result.unavailable:
        parts.append("Not run here: " + "; ".join(f"{name} ({why})" for name, why in result.unavailable.items()) + ".")
    if result.answers:
        parts.append(_answers_in_words(result.answers))
    parts += [f"Plan of *{name}*:\n\n```\n{plan}\n```" for name, plan in result.plans.items()]
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


def _table_of_panel(panel: Panel) -> str:
    columns = list(dict.fromkeys(row.x for row in panel.rows or panel.published))
    if panel.style == "lines":
        columns = sorted({row.x for row in (*panel.rows, *panel.published)}, key=float)
    lines = [[f"{panel.x_label}", *map(place, columns)], ["---", *("--:" for _ in columns)]]
    lines += _cells(panel.rows, columns, "")
    lines += _cells(panel.published, columns, "paper: ")
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cells(rows: Iterable[Row], columns: list[str | float], prefix: str) -> list[list[str]]:
    lines = []
    for system, some in _rows_by_system(rows).items():
        cells = {row.x: number(row.value) for row in some}
        lines.append([prefix + system, *(cells.get(x, "") for x in columns)])
    return lines


def _table_of_lines(lines: Iterable[Row]) -> str:
    rows = ["|  | measured | target |  |", "| --- | --: | --- | --- |"]
    rows += [f"| {line.what} | {line} | {line.target or ''} | {line.verdict} |" for line in lines]
    return "\n".join(rows)


def _answers_in_words(answers: list[Answers]) -> str:
    exact = [found for found in answers if found.exact]
    parts = []
    if exact:
        keys, wrong, missing = (sum(getattr(found, name) for found in exact) for name in ("keys", "wrong", "missing"))
        fewest, most = (extreme(found.queries for found in exact) for extreme in (min, max))
        compared = f"{most:,} queries" if fewest == most else f"{fewest:,} to {most:,} queries at a time"
        parts.append(f"Exact systems gave {keys:,} keys to {compared}: {wrong:,} wrong, {missing:,} missing.")
    for system in dict.fromkeys(found.system for found in answers if not found.exact):
        some = [found for found in answers if found.system == system and not found.exact]
        keys, wrong, missing = (sum(getattr(found, name) for found in some) for name in ("keys", "wrong", "missing"))
        share = wrong / keys if keys else 0.0
        parts.append(f"Of the {keys:,} keys of {system}, {wrong:,} ({share:.0%}) were wrong; {missing:,} were missing.")
    return " ".join(parts)


#: One for each system of a picture
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#8c564b", "#666666", "#bcbd22",
    "#17becf", "#1b3a6b", "#e31a1c", "#b2df8a", "#000000", "#fdbf6f", "#cab2d6", "#33691e", "#ff69b4", "#ffe800",
)  # fmt: skip
_PUBLISHED_COLOUR = "#b0b0b0"
_HATCHES = ("//", "..", "xx", "\\\\", "--", "++")
_MARKERS = "osD^v<>P*X"
#: More panels would not be readable on a small screen; tables have all of them
_MOST_PANELS = 4
#: Inches, so that a picture has at most 1,200 pixels by 900
_PANEL_WIDTHS = {1: 9.0, 2: 5.4}
_PANEL_HEIGHT = 3.5
_LEGEND_HEIGHT = 1.0
_MOST_LABELLED_BARS = 24
#: Characters of the names of places that fit below a panel, for an inch of its width
_CHARACTERS_AN_INCH = 9
#: Room above the greatest value, for its label
_HEADROOM, _HEADROOM_OF_LOG = 1.15, 4.0


def draw(result: Result, path: Path) -> None:
    """Write the first panels of a result side by side as a PNG file, without those that have zeros only."""
    from matplotlib.figure import Figure

    panels = [panel for panel in result.panels if any(value.value for value in panel.rows)][:_MOST_PANELS]
    columns = max(1, min(len(panels), 2))
    rows = -(-len(panels) // columns)
    size = (columns * _PANEL_WIDTHS[columns], rows * _PANEL_HEIGHT + _LEGEND_HEIGHT)
    figure = Figure(figsize=size, layout="constrained")
    colours = _colours(panels)
    for i, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, columns, i + 1), panel, colours, _PANEL_WIDTHS[columns])
    figure.suptitle(result.title, fontsize=11)
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=2 + columns, fontsize=8, frameon=False
    )
    figure.savefig(path, dpi=110, format="png")


def _colours(panels: Sequence[Panel]) -> dict[str, str]:
    """Give each measured system one colour in all panels."""
    systems = dict.fromkeys(value.what for panel in panels for value in panel.rows)
    return {system: COLOURS[i % len(COLOURS)] for i, system in enumerate(systems)}


def _draw_panel(axes: Any, panel: Panel, colours: dict[str, str], width: float) -> None:
    if panel.style == "lines":
        _draw_lines(axes, panel, colours)
    else:
        _draw_bars(axes, panel, colours, round(width * _CHARACTERS_AN_INCH))
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.unit)
    values = [row.value for row in (*panel.rows, *panel.published)]
    most = max(values)
    if panel.log:
        least = min(value for value in values if value > 0)  # a zero has no place on such an axis
        axes.set_yscale("log")
        axes.set_ylim(10 ** math.floor(math.log10(least / 1.5)), 10 ** math.ceil(math.log10(most * _HEADROOM_OF_LOG)))
    else:
        axes.set_ylim(0, most * _HEADROOM)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _rows_by_system(values: Iterable[Row]) -> dict[str, list[Row]]:
    systems: dict[str, list[Row]] = {}
    for value in values:
        systems.setdefault(value.what, []).append(value)
    return systems


def _draw_bars(axes: Any, panel: Panel, colours: dict[str, str], most_characters: int) -> None:
    places = list(dict.fromkeys(value.x for value in (*panel.rows, *panel.published)))
    groups = [(name, found, {"color": colours[name]}) for name, found in _rows_by_system(panel.rows).items()]
    for i, (name, found) in enumerate(_rows_by_system(panel.published).items()):
        hatch = _HATCHES[i % len(_HATCHES)]
        groups.append((f"paper: {name}", found, {"color": "white", "edgecolor": _PUBLISHED_COLOUR, "hatch": hatch}))
    width = 0.84 / len(groups)
    labelled = len(places) * len(groups) <= _MOST_LABELLED_BARS
    for i, (name, found, look) in enumerate(groups):
        at = [places.index(value.x) - 0.42 + width * (i + 0.5) for value in found]
        bars = axes.bar(at, [value.value for value in found], width, label=name, **look)
        if labelled:
            axes.bar_label(bars, [number(value.value) for value in found], fontsize=6, rotation=90, padding=2)
    names = [place(x) for x in places]
    overlap = len(names) * max(map(len, names)) > most_characters  # each has as much room as the longest
    turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor", "fontsize": 8} if overlap else {}
    axes.set_xticks(range(len(places)), names, **turned)


def _draw_lines(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    for rows, prefix in ((panel.rows, ""), (panel.published, "paper: ")):
        for i, (name, found) in enumerate(_rows_by_system(rows).items()):
            look = {"color": "#888888", "ls": ":", "fillstyle": "none"} if prefix else {"color": colours[name]}
            marker, at = _MARKERS[i % len(_MARKERS)], [value.x for value in found]
            axes.plot(at, [value.value for value in found], marker=marker, label=f"{prefix}{name}", **look)
    if panel.log_x:
        axes.set_xscale("log")
    ticks = sorted({float(value.x) for value in (*panel.rows, *panel.published)})
    axes.set_xticks(ticks, [place(x) for x in ticks], fontsize=7, rotation=45 if len(ticks) > 6 else 0)
    axes.minorticks_off()
