"""The pages of papers: what they name is there, and their figures are recorded ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.documents import ROOT

PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_RECORDED = set(_NUMBER.findall(BENCHMARKS))


def figures(text: str) -> list[str]:
    """The numbers of tables whose columns are aligned as numbers are, without headings and first columns."""
    found = []
    for table in re.findall(r"(?m)^\|(?:[-: ]*\|)*-+:\|\n((?:\|.*\n)+)", text):
        for row in table.splitlines():
            found += [number for cell in row.strip("|").split("|")[1:] for number in _NUMBER.findall(cell)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_are_recorded(page: Path) -> None:
    assert len(figures(page.read_text())) > 10
    assert not set(figures(page.read_text())) - _RECORDED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_named_is_there(page: Path) -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page.read_text())
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_each_paper_has_its_page() -> None:
    """And each page stands in the site's navigation."""
    listed = re.findall(r"papers/(\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == [page.stem for page in PAGES]
    assert len(PAGES) == 5


def test_a_number_that_is_not_recorded_is_found() -> None:
    text = "| a | b |\n|---|--:|\n| 123,456,789 | 98,765.4321 |\n"
    assert figures(text) == ["98,765.4321"]
    assert not set(figures(text)) & _RECORDED
