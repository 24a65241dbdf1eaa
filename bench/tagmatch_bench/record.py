"""The record: results that were measured, and the tables of the documentation, which are filled in from them.

`bench/record.toml` names the command of each result in `bench/results/`, and has a template of each table. In it,
`{table1 > ICN tree > 10 %}` is a value: panel, system and place. A cell that names no place has a value for each
heading from there on. `A + B` are the results of a panel that took two runs. `{A ÷ B}` is a ratio, `{2 ÷ 1}` that of
two cells of the row. A page marks a table as `<!-- table NAME -->`, and a number in a sentence as
`<!-- REFERENCE -->1.98`, where `~ M` gives millions.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tagmatch import TagMatchError
from tagmatch.files.formats import write_whole
from tagmatch_bench.harness.report import draw, number, place, result_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
#: Pages that show recorded numbers
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_TABLE = re.compile(r"<!-- table ([\w-]+) -->\n\n?(?:\|.*\n)*")
_NUMBER = re.compile(r"<!-- ([\w/-]+ > [^\n]+?) -->[\d.,]*\d")
_REFERENCE = re.compile(r"\{([^{}]+)\}")
_SCALES = {"M": 1e6, "K": 1e3}


@cache
def _record() -> dict[str, Any]:
    return tomllib.loads((ROOT / "bench" / "record.toml").read_text())


def commands() -> Mapping[str, str]:
    """The command of each result, by the name of its file in `bench/results/`, without `.json`."""
    return dict(_record()["commands"])


def tables() -> Mapping[str, str]:
    """The templates of tables by name."""
    return dict(_record()["tables"])


def pictures() -> Mapping[str, Sequence[str]]:
    """The results that are drawn for the documentation, each with the titles of its panels that are."""
    return dict(_record()["pictures"])


@cache
def _facts(name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((RESULTS / f"{name}.json").read_text()))
    except OSError:
        raise TagMatchError(f"{name!r} is not a result in bench/results") from None


@cache
def _values(name: str) -> dict[tuple[str, str], dict[str, float]]:
    """The values of a result by panel and system, then by place; published ones are of `paper: SYSTEM`."""
    values: dict[tuple[str, str], dict[str, float]] = {}
    for panel in _facts(name)["panels"]:
        for kind, prefix in (("values", ""), ("published", "paper: ")):
            for each in panel[kind]:
                values.setdefault((panel["title"], prefix + each["system"]), {})[place(each["x"])] = each["value"]
    for line in _facts(name).get("lines", ()):
        values[("lines", line["what"])] = {"": line["value"]}
    return values


def _row(reference: str) -> dict[str, float]:
    """Values by place of a reference to a system; of one to a place, its value, which holds at any."""
    begin, _, rest = reference.partition(" > ")
    whole = f"{_record()['panels'].get(begin, begin)} > {rest}".split(" > ")
    name, panel, system, at = (whole + [""] * 3)[:4]
    runs = [_values(run) for run in name.split(" + ")]
    found = {x: value for run in runs for x, value in run.get((panel, system), {}).items()}
    if not found or (at and at not in found):
        raise TagMatchError(f"{reference!r} is not in bench/results: there is {sorted(found or runs[0])}")
    return {"": found[at]} if at else found


def _text(reference: str, at: str | None = None) -> str:
    """A value or a ratio as text; at a place, or at the only one that the reference has."""
    reference, _, scale = reference.partition(" ~ ")
    top, _, bottom = reference.partition(" ÷ ")
    values = []
    for each in filter(None, (top, bottom)):
        row = _row(each)
        if at is None and len(row) != 1:
            raise TagMatchError(f"{each!r} names no place, and has several: {sorted(row)}")
        values.append(next(iter(row.values())) if at is None else row.get("", row.get(at)))
    if None in values:
        return ""
    value = values[0] / values[1] if bottom else values[0] / _SCALES.get(scale, 1)  # type: ignore[operator]
    return number(value)


def table(name: str) -> str:
    """A table of the record, filled in."""
    if name == "results":
        return _results()
    lines = tables()[name].strip().splitlines()
    headings = [cell.strip() for cell in lines[0].strip("|").split("|")]
    rows = [lines[0], "|---|" + "--:|" * (len(headings) - 1)]
    rows += [_line(line, headings) for line in lines[1:]]
    columns = zip(headings, *(row.strip("|").split("|") for row in rows[2:]), strict=True)
    if empty := [heading for heading, *cells in columns if not any(map(str.strip, cells))]:
        raise TagMatchError(f"table {name!r} in bench/record.toml has no value under {', '.join(empty)}")
    return "\n".join(rows)


def _line(line: str, headings: Sequence[str]) -> str:
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    last = _REFERENCE.fullmatch(cells[-1])
    if last and len(cells) < len(headings):
        cells[-1:] = [_text(last[1], at) for at in headings[len(cells) - 1 :]]
    whole = "|".join(f" {cell} " if cell else " " for cell in cells)
    whole = re.sub(r"\{(\d) ÷ (\d)\}", lambda found: _ratio(cells, found), whole)
    return f"|{_REFERENCE.sub(lambda found: _text(found[1]), whole)}|"


def _ratio(cells: Sequence[str], of: re.Match[str]) -> str:
    top, bottom = (_REFERENCE.findall(cells[int(of[k])])[0] for k in (1, 2))
    return f"{{{top} ÷ {bottom}}}"


def _results() -> str:
    """A row for the results of each commit on a machine: which machine, when, which commit, and the commands."""
    rows = dict[str, tuple[list[str], list[str]]]()
    for name, command in commands().items():
        where = _facts(name)["circumstances"]
        machine, gpus = where["machine"], where["machine"]["gpus"]
        devices = f", {len(gpus)} × {gpus[0].partition(',')[0]}" if gpus else ""
        cores = f"{machine['usable_cores']} cores, {_cpu(machine['cpu'])}"
        at = f"{cores}{devices} | {where['date'][:10]}, {where['commit'][:7]}"
        for cell, text in zip(rows.setdefault(at, ([], [])), (name, command), strict=True):
            if f"`{text}`" not in cell:
                cell.append(f"`{text}`")
    found = [f"| {', '.join(names)} | {at} | {'; '.join(done)} |" for at, (names, done) in rows.items()]
    return "\n".join(["| results | machine | measured | commands |", "|---|---|---|---|", *found])


def _cpu(name: str) -> str:
    return name.replace("(R)", "").removesuffix(" Processor")


def filled(text: str) -> str:
    """The text of a page with all of its tables and numbers as they are recorded."""
    text = _TABLE.sub(lambda found: f"<!-- table {found[1]} -->\n\n{table(found[1])}\n", text)
    return _NUMBER.sub(lambda found: f"<!-- {found[1]} -->{_text(found[1])}", text)


def fill_pages() -> list[Path]:
    """Fill in all pages, and draw the pictures; returns the pages that have changed."""
    changed = []
    for page in PAGES:
        text = page.read_text()
        if (new := filled(text)) != text:
            page.write_text(new)
            changed.append(page)
    for name, titles in pictures().items():
        picture, result = picture_of(name), result_of(_facts(name))
        result.panels = [panel for panel in result.panels if panel.title in titles]
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw(result, picture)
    return changed


def picture_of(name: str) -> Path:
    """Where the picture of a result is."""
    return ROOT / "docs" / "pictures" / f"{name.replace('/', '-')}.png"


def measure(begins: str, say: Callable[[str], None]) -> None:
    """Measure results anew whose names begin so, one after the other."""
    chosen = dict[tuple[str, str], list[str]]()  # a command may write several results of a machine
    for name, command in commands().items():
        if name.startswith(begins):
            chosen.setdefault((name.partition("/")[0], command), []).append(name)
    if not chosen:
        raise TagMatchError(f"no result begins with {begins!r}; there are {', '.join(commands())}")
    for (_, command), names in chosen.items():
        say(f"{', '.join(names)}: tagmatch-bench {command}")
        with tempfile.TemporaryDirectory() as folder:
            program = Path(sys.executable).with_name("tagmatch-bench")
            run = [str(program), *shlex.split(command), "--output", folder]
            if subprocess.run(run).returncode:
                raise TagMatchError(f"{', '.join(names)} was not recorded: the command failed; its messages are above")
            found = {path.stem: path for path in Path(folder).glob("*.json")}
            for name in names:
                made = found.get(Path(name).name) or next(iter(found.values()))
                (RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
                with write_whole(RESULTS / f"{name}.json") as part:
                    part.write_bytes(made.read_bytes())
