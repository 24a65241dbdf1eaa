"""The commands `tagmatch-workload content` and `location` of tagmatch-bench, as a person or a script runs them."""

import json
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from support.workload import refused, run

from tagmatch.files.json import object_lines
from tagmatch_bench.workloads import content, location
from tagmatch_bench.workloads.content import Content, where_texts
from tagmatch_bench.workloads.location import LocationWorkload, near_me

pytestmark = pytest.mark.slow

SMALL = {"interfaces": 3, "min_filters": 10, "max_filters": 20, "names": 30, "strings": 0.5}
FEW = ("--subscribers", 30, "--filters-each", 2)
ROOT = Path(__file__).parents[2]
CITIES = ROOT / "examples" / "data" / "cities.parquet"


@pytest.fixture(autouse=True)
def _entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where tagmatch-bench is installed."""
    project = tomllib.loads((ROOT / "bench" / "pyproject.toml").read_text())["project"]

    def entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint(name, value, group) for name, value in project["entry-points"][group].items()]

    monkeypatch.setattr("tagmatch.workloads.commands.entry_points", entry_points)


def given(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def of_content(scenario: str = "pcm", **options: Any) -> Content:
    return Content(replace(content.SCENARIOS[scenario], **options))


def of_location(scenario: str = "clcb", **options: Any) -> LocationWorkload:
    return LocationWorkload(replace(location.SCENARIOS[scenario], subscribers=30, filters_each=2, **options))


def paths(folder: Path) -> list[Path]:
    return [folder / f"{name}.parquet" for name in ("subscriptions", "messages", "moves")]


@pytest.mark.parametrize(("threads", "messages"), [(1, 0), (3, 70)])
def test_content(tmp_path: Path, threads: int, messages: int) -> None:
    stored, sent, _ = paths(tmp_path)
    more = ("--messages", messages, "--threads", threads, "--seed", 9)
    assert run("content", stored, sent, *given(SMALL), *more, *["--where"] * (threads == 3)) == ""
    made, table = of_content(**SMALL, seed=9), pq.read_table(stored)
    assert table.select(["key", "tags", "constraints"]).equals(made.subscriptions(0, made.filters))
    if threads == 3:
        assert table["where"].to_pylist() == where_texts(table["constraints"].combine_chunks()).to_pylist()
    assert pq.read_table(sent).equals(made.messages(0, messages))
    assert pq.read_schema(sent) == made.messages_schema


def test_content_as_json_lines(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Subscriptions in a file, messages on standard output; numbers are the scenario's where others are not given."""
    changed = {"interfaces": 40, "names": 25}
    run("content", tmp_path / "s.jsonl", "-", *given(changed), "--scenario", "dense", "--messages", 5)
    made = of_content("dense", **changed)
    assert made.filters == 40
    where = where_texts(made.subscriptions(0, 40)["constraints"].combine_chunks()).to_pylist()
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"key": i, "tags": [], "where": text} for i, text in enumerate(where)]
    sent = [{name: x for name, x in row.items() if x is not None} for row in made.messages(0, 5).to_pylist()]
    assert list(map(json.loads, capfdbinary.readouterr().out.splitlines())) == sent


@pytest.mark.parametrize("kind", ["constraints", "tags"])
def test_location(tmp_path: Path, kind: Any) -> None:
    stored, sent, moves = paths(tmp_path)
    more = ("--moves", moves, "--move-count", 7, "--content", kind, "--seed", 9, "--scenario", "zipf")
    assert run("location", stored, sent, *FEW, "--messages", 70, "--threads", 2, *more) == ""
    made = of_location("zipf", seed=9)
    assert pq.read_table(stored).equals(made.subscriptions(0, 60, content=kind))
    assert pq.read_table(sent).equals(made.messages(0, 70, content=kind))
    assert pq.read_table(moves).equals(made.moves(0, 7))


def test_location_as_json_lines(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Moves are not written unless they are asked for."""
    run("location", tmp_path / "s.jsonl", "-", *FEW, "--messages", 5, "--degrees", 0.5)
    made = of_location(degrees=0.5)
    lines = list(map(json.loads, (tmp_path / "s.jsonl").read_text().splitlines()))
    assert [line["area"] for line in lines] == made.subscriptions(0, 60)["area"].to_pylist()
    assert lines[0].keys() == {"key", "tags", "where", "area"}
    due = b"".join(bytes(object_lines(batch)) for batch in made.messages(0, 5).to_batches())
    assert capfdbinary.readouterr().out == due
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


def test_cities(tmp_path: Path) -> None:
    files = paths(tmp_path)
    more = ("--messages", 8, "--moves", files[2], "--move-count", 3)
    run("location", *files[:2], *FEW, "--cities", CITIES, *more)
    made = near_me(pq.read_table(CITIES), 60, 8, 1, moves=3)
    assert all(pq.read_table(path).equals(pa.table(table)) for path, table in zip(files, made, strict=True))
    as_csv, odd = tmp_path / "cities.csv", tmp_path / "odd.csv"
    pa_csv.write_csv(pq.read_table(CITIES), as_csv)
    run("location", *files[:2], *FEW, "--cities", as_csv, *more)
    assert all(pq.read_table(path).equals(pa.table(table)) for path, table in zip(files, made, strict=True))
    odd.write_text("country,timezone,population,lat,lon\nit,Rome,many,1,2\n")
    assert f"{odd}: places: column 'population' must be of int64" in refused("location", *files[:2], "--cities", odd)
    odd.write_text("country,timezone,population,lat\nit,Rome,5,1\n")
    assert f"{odd} has no column 'lon'; it has 'country'" in refused("location", *files[:2], "--cities", odd)


def test_refused(tmp_path: Path) -> None:
    target, other, csv = tmp_path / "s.parquet", tmp_path / "m.parquet", tmp_path / "m.csv"
    for arguments, message in (
        (("content", target, other, "--names", 4), "max_constraints must be at most names, 4, not 5"),
        (("content", target, csv, *given(SMALL)), "m.csv: the name must end in one of"),
        (("location", target, other, "--names", 4), "names must be a multiple of topic_names, 5, not 4"),
        (("location", target, csv, *FEW), "m.csv: the name must end in one of"),
        (
            ("location", target, other, "--cities", tmp_path / "no"),
            "no: cannot tell the format; the name must",
        ),
    ):
        assert message in refused(*arguments)
    for arguments, message in (
        (("content", target, target), "must be another one"),
        (("content", target, other, "--scenario", "sparse"), "--scenario"),
        (("content", target, other, "--names", 0), "--names"),
        (("location", target, target), "must be files that differ"),
        (("location", target, other, "--moves", target), "must be files that differ"),
        (("location", target, other, "--content", "words"), "--content"),
    ):
        assert message in run(*arguments, code=2)
    assert list(tmp_path.iterdir()) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Names each number's source and what it is in each scenario."""
    of_content = (
        "attributes (PCM Table 1). [default: 100; dense: 20]",
        "50 % of constraints). [default: 0.0; ccm: 0.5]",
    )
    of_location = ("Different names of attributes (CLCB Table 1). [default: 100; every: 5]",)
    for command, texts in (("content", of_content), ("location", of_location)):
        run(command, "--help")
        words = " ".join(capsys.readouterr().out.split())
        assert all(text in words for text in texts)


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "guide" / "workloads.md").read_text()
    lines = [line.split()[1:] for line in guide.splitlines() if line.startswith("    tagmatch-workload ")]
    examples = [words for words in lines if words[0] in ("content", "location")]
    assert len(examples) == 4
    monkeypatch.chdir(tmp_path)
    for words in examples:
        run(*(CITIES if word.endswith("cities.parquet") else word for word in words))
        assert Path(words[1]).stat().st_size > 0
