"""The figures that docs show are those that were recorded."""

import json
import re
from pathlib import Path

import pytest
from support.documents import ROOT

from tagmatch_bench.harness.report import number

RECORDED = {str(path.relative_to(ROOT / "docs" / "benchmarks")): path for path in ROOT.glob("docs/benchmarks/*/*.json")}
PAPERS = sorted((ROOT / "docs" / "papers").glob("*.md"))
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_NUMBERS = set(_NUMBER.findall(BENCHMARKS))


@pytest.mark.parametrize("name", RECORDED)
def test_tables_are_those_that_were_recorded(name: str) -> None:
    """Those of devices are in tables of their own."""
    result = json.loads(RECORDED[name].read_text())
    if "/gpu-" in name:
        for value in (value for panel in result["panels"] for value in panel["values"]):
            assert f" {number(value['value'])} " in BENCHMARKS, value["system"]
        return
    plot = f"![{result['title']}](benchmarks/{name.removesuffix('.json')}.png)"
    assert BENCHMARKS.count(plot) == 1
    section = BENCHMARKS.partition(plot)[2].partition("\n### ")[0]
    # Without cells that are empty, of what was not measured there
    tabled = [[cell for cell in map(str.strip, line.split("|")) if cell] for line in section.splitlines()]
    for panel in result["panels"]:
        rows: dict[str, list[str]] = {}
        for value in panel["values"]:
            rows.setdefault(value["system"], []).append(number(value["value"]))
        for system, values in rows.items():
            assert set(values) == {"0"} or [system, *values] in tabled


def test_results_of_changed_code_are_named() -> None:
    """Those that nobody can measure again."""
    _, _, named = BENCHMARKS.partition("**Not reproducible**")
    named, _, _ = named.partition("\n\n")
    for name, path in RECORDED.items():
        found = json.loads(path.read_text())["circumstances"]
        commit, dirty, _ = found["commit"].partition("-dirty")
        changed = bool(dirty) or bool(found.get("changed_files"))
        assert (f"`{name}`" in named) == changed, name
        assert not changed or commit[:7] in named


def test_figures_say_on_which_device_they_ran() -> None:
    """Each section with measured values of our own systems."""
    sections = [section for section in re.split(r"(?m)^##+ ", BENCHMARKS) if re.search(r"(?m)^\| tagmatch", section)]
    measured = [section for section in sections if not section.startswith("The systems\n")]
    assert measured
    for section in measured:
        assert re.search(r"on the CPU|on CUDA devices", section), section.partition("\n")[0]


def test_table_1_in_short_is_as_recorded() -> None:
    """On one H200, with the whole database."""
    table = BENCHMARKS.partition("benchmarks/h200-paper/table1.png")[2]
    begin = "- In the paper's Table 1 with 8 million sets, on one H200:"
    short = " ".join(BENCHMARKS.partition(begin)[2].partition("\n- ")[0].split())
    for system in ("tagmatch, rarest, GPU", "tagmatch, balanced, GPU", "TagMatch (balanced, exact=False), GPU"):
        rows = re.findall(rf"^\| {re.escape(system)} \|.*\| ([\d,]+) \|$", table, re.MULTILINE)
        assert f"{int(rows[0].replace(',', '')) / 1e6:.1f} million" in short


# -- pages of papers ---------------------------------------------------------------------------------------------------


def figures(text: str) -> list[str]:
    """The numbers of tables whose columns are aligned as numbers are, without headings and first columns."""
    tables = re.findall(r"(?m)^\|(?:[-: ]*\|)*-+:\|\n((?:\|.*\n)+)", text)
    cells = (cell for table in tables for row in table.splitlines() for cell in row.strip("|").split("|")[1:])
    return [number for cell in cells for number in _NUMBER.findall(cell)]


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_pages_of_papers(page: Path) -> None:
    """Their figures are recorded ones, and what they name is there."""
    text = page.read_text()
    assert len(figures(text)) > 10
    assert not set(figures(text)) - _NUMBERS
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_each_paper_has_its_page() -> None:
    """And each page stands in the site's navigation; a number that is not recorded is found."""
    listed = re.findall(r"papers/(\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == [page.stem for page in PAPERS]
    assert len(PAPERS) == 5
    text = "| a | b |\n|---|--:|\n| 123,456,789 | 98,765.4321 |\n"
    assert figures(text) == ["98,765.4321"]
    assert not set(figures(text)) & _NUMBERS
