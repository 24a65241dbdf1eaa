"""The numbers that the documentation shows are those that were recorded."""

import json
import re
import struct
from pathlib import Path

import pytest
from support.documents import ROOT

from tagmatch import TagMatchError
from tagmatch_bench import record
from tagmatch_bench.harness.report import COLOURS, number

RECORDED = {
    str(path.relative_to(record.RESULTS)).removesuffix(".json"): path for path in record.RESULTS.rglob("*.json")
}
PAPERS = sorted((ROOT / "docs" / "papers").glob("*.md"))
BENCHMARKS = ROOT / "docs" / "benchmarks.md"


@pytest.mark.parametrize("page", record.PAGES, ids=lambda page: page.stem)
def test_pages_have_the_recorded_numbers(page: Path) -> None:
    """`make pages` fills them in."""
    text = page.read_text()
    assert record.filled(text) == text


def test_other_numbers_are_replaced() -> None:
    """In a table, and in a sentence."""
    value = record.table("table1-cpu").splitlines()[2].split("|")[2].strip()
    sentence = "and <!-- table1-cpu > ICN tree > 10 % -->1,234.5 more"
    page = f"<!-- table table1-cpu -->\n\n{record.table('table1-cpu')}\n\n{sentence}"
    assert value in page
    changed = page.replace(value, "7")
    assert record.filled(changed) == record.filled(page) != changed
    facts = json.loads(RECORDED["two-cores/table1"].read_text())["panels"][0]["values"]
    (right,) = (each["value"] for each in facts if (each["system"], each["x"]) == ("ICN tree", "10 %"))
    assert f"-->{number(right)} more" in record.filled(page)


@pytest.mark.parametrize(
    "reference",
    [
        "two-cores/none > match > ICN tree",
        "table1-cpu > no system > 10 %",
        "table1-cpu > ICN tree > 11 %",
        "table1-cpu > ICN tree",
    ],
)
def test_numbers_that_are_not_recorded_are_errors(reference: str) -> None:
    with pytest.raises(TagMatchError, match=r"is not a result|is not in bench/results|names no place"):
        record.filled(f"<!-- {reference} -->1")


def test_headings_without_values_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt place would leave a column empty."""
    tables = {"few": "| | 10 % | 15 % |\n| trees | {table1-cpu > ICN tree} |"}
    monkeypatch.setattr(record, "tables", lambda: tables)
    with pytest.raises(TagMatchError, match=r"table 'few' in bench/record.toml has no value under 15 %"):
        record.table("few")


def test_each_result_can_be_measured_again() -> None:
    """It has a command, and the commit of a clean checkout."""
    assert RECORDED.keys() == record.commands().keys()
    for name, path in RECORDED.items():
        found = json.loads(path.read_text())["circumstances"]
        assert re.fullmatch(r"[0-9a-f]{40}", found["commit"]), name
        assert not found.get("changed_files"), name


def test_benchmarks_fit_a_reader() -> None:
    """All of them, on one page, which names their machine."""
    text = BENCHMARKS.read_text()
    assert len(text.splitlines()) <= 400
    assert re.search(r'on its CPU \(`device="cpu"`\)|on the CPU', text)
    assert 'device="cuda"' in text


@pytest.mark.parametrize("page", [BENCHMARKS, *PAPERS], ids=lambda page: page.stem)
def test_tables_of_numbers_are_recorded_ones(page: Path) -> None:
    tables = re.findall(r"(?m)^(.*)\n\n?\|.*\|\n\|(?:[-: ]*\|)*-+:\|", page.read_text())
    assert tables
    assert all(re.fullmatch(r"<!-- table [\w-]+ -->", before) for before in tables), tables


def test_all_templates_are_shown() -> None:
    shown = {name for page in record.PAGES for name in re.findall(r"<!-- table ([\w-]+) -->", page.read_text())}
    assert shown == {*record.tables(), "results"}


def test_pictures_can_be_read_on_a_small_screen() -> None:
    """And there are no others, except those of the console."""
    folder = ROOT / "docs" / "pictures"
    pictures = {record.picture_of(name) for name in record.pictures()} | {*folder.glob("console_*.png")}
    assert pictures == set(folder.iterdir())
    for picture in pictures:
        width, height = struct.unpack(">II", picture.read_bytes()[16:24])
        assert (width, height) <= (1200, 900), picture
        assert height <= 900, picture


def test_systems_of_a_picture_have_a_colour_each() -> None:
    """And each panel that is drawn is recorded."""
    for name, titles in record.pictures().items():
        panels = {panel["title"]: panel["values"] for panel in json.loads(RECORDED[name].read_text())["panels"]}
        assert titles
        assert len({each["system"] for title in titles for each in panels[title]}) <= len(set(COLOURS)), name
    assert len(set(COLOURS)) == len(COLOURS)


# -- pages of papers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.stem)
def test_pages_of_papers(page: Path) -> None:
    """What they name is there."""
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page.read_text())
    assert paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_each_paper_has_its_page() -> None:
    """And each page is in the site's navigation."""
    listed = re.findall(r"papers/(\w+)\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == [page.stem for page in PAPERS]
    assert len(PAPERS) == 5
