"""Draws the panels of a result, as the paper's figures: grouped bars, or lines; the paper's own values are paler."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tagmatch_bench.harness.report import number, place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tagmatch_bench.harness.results import Panel, Result, Row

_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7a5195", "#8c564b", "#666666", "#bcbd22",
    "#17becf", "#1b3a6b",
)  # fmt: skip
_PUBLISHED_COLOUR = "#b0b0b0"
_HATCHES = ("//", "..", "xx", "\\\\", "--", "++")
_MARKERS = "osD^v<>P*X"
#: Inches, of a panel by how many stand side by side
_PANEL_WIDTHS = {1: 9.0, 2: 7.0, 3: 5.6}
_PANEL_HEIGHT = 3.9
_LEGEND_HEIGHT = 1.0
_MOST_LABELLED_BARS = 24
#: Room above the greatest value, for its label
_HEADROOM, _HEADROOM_OF_LOG = 1.15, 4.0


def draw(result: Result, path: Path) -> None:
    """Write the panels of a result, but for those of zeros only, side by side as a PNG file."""
    from matplotlib.figure import Figure

    panels = [panel for panel in result.panels if any(value.value for value in panel.rows)]
    columns = len(panels) if len(panels) in _PANEL_WIDTHS else 2
    rows = -(-len(panels) // columns)
    size = (columns * _PANEL_WIDTHS[columns], rows * _PANEL_HEIGHT + _LEGEND_HEIGHT)
    figure = Figure(figsize=size, layout="constrained")
    colours = _colours(panels)
    for i, panel in enumerate(panels):
        _draw_panel(figure.add_subplot(rows, columns, i + 1), panel, colours)
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
    return {system: _COLOURS[i % len(_COLOURS)] for i, system in enumerate(systems)}


def _draw_panel(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    (_draw_lines if panel.style == "lines" else _draw_bars)(axes, panel, colours)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.unit)
    most = max(value.value for value in (*panel.rows, *panel.published))
    least = min(value.value for value in (*panel.rows, *panel.published))
    if panel.log:
        axes.set_yscale("log")
        axes.set_ylim(10 ** math.floor(math.log10(least / 1.5)), 10 ** math.ceil(math.log10(most * _HEADROOM_OF_LOG)))
    else:
        axes.set_ylim(0, most * _HEADROOM)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _by_system(values: Sequence[Row]) -> dict[str, list[Row]]:
    systems: dict[str, list[Row]] = {}
    for value in values:
        systems.setdefault(value.what, []).append(value)
    return systems


def _draw_bars(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    places = list(dict.fromkeys(value.x for value in (*panel.rows, *panel.published)))
    measured, published = _by_system(panel.rows), _by_system(panel.published)
    width = 0.84 / (len(measured) + len(published))
    labelled = len(places) * (len(measured) + len(published)) <= _MOST_LABELLED_BARS
    groups = [(name, found, {"color": colours[name]}) for name, found in measured.items()]
    groups += [
        (
            f"paper: {name}",
            found,
            {"color": "white", "edgecolor": _PUBLISHED_COLOUR, "hatch": _HATCHES[i % len(_HATCHES)]},
        )
        for i, (name, found) in enumerate(published.items())
    ]
    for i, (name, found, look) in enumerate(groups):
        at = [places.index(value.x) - 0.42 + width * (i + 0.5) for value in found]
        bars = axes.bar(at, [value.value for value in found], width, label=name, **look)
        if labelled:
            axes.bar_label(bars, [number(value.value) for value in found], fontsize=6, rotation=90, padding=2)
    axes.set_xticks(range(len(places)), [place(x) for x in places])


def _draw_lines(axes: Any, panel: Panel, colours: dict[str, str]) -> None:
    for i, (name, found) in enumerate(_by_system(panel.rows).items()):
        at, values = [value.x for value in found], [value.value for value in found]
        axes.plot(at, values, marker=_MARKERS[i % len(_MARKERS)], color=colours[name], label=name)
    for i, (name, found) in enumerate(_by_system(panel.published).items()):
        at, values = [value.x for value in found], [value.value for value in found]
        marker = _MARKERS[i % len(_MARKERS)]
        axes.plot(at, values, marker=marker, color="#888888", ls=":", fillstyle="none", label=f"paper: {name}")
    if panel.log_x:
        axes.set_xscale("log")
    ticks = sorted({float(value.x) for value in (*panel.rows, *panel.published)})
    axes.set_xticks(ticks, [place(x) for x in ticks], fontsize=7, rotation=45 if len(ticks) > 6 else 0)
    axes.minorticks_off()
