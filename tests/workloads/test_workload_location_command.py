"""The command `tagmatch-workload location`, as a person or a script runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmatch.workloads.location import SCENARIOS, Location
from tagmatch.workloads.location.real import near_me
from tagmatch.workloads.location.text import message_lines

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from tagmatch.workloads.commands.workload import main; main()", "location"]
SMALL = ["--subscribers", 30, "--filters-each", 2]
CITIES = Path(__file__).parents[2] / "examples" / "data" / "cities.parquet"


def run(*arguments: object, code: int = 0) -> tuple[bytes, str]:
    """Run the command; returns what it writes on standard output and says on standard error."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr.decode()


def expected(scenario: str = "clcb", **options: Any) -> Location:
    return Location(replace(SCENARIOS[scenario], subscribers=30, filters_each=2, **options))


def read(*paths: Path) -> list[pa.Table]:
    return [pq.read_table(path) for path in paths]


@pytest.mark.parametrize("content", ["constraints", "tags"])
def test_parquet(tmp_path: Path, content: Any) -> None:
    files = [tmp_path / f"{name}.parquet" for name in ("subscriptions", "messages", "moves")]
    more = ("--moves", files[2], "--move-count", 7, "--content", content, "--seed", 9, "--scenario", "zipf")
    assert run(*files[:2], *SMALL, "--messages", 70, "--threads", 2, *more) == (b"", "")
    made = expected("zipf", seed=9)
    stored, sent, moves = read(*files)
    assert stored.equals(made.subscriptions(0, 60, content=content))
    assert sent.equals(made.messages(0, 70, content=content))
    assert moves.equals(made.moves(0, 7))


def test_json_lines(tmp_path: Path) -> None:
    """Subscriptions in a file, messages on standard output; moves are not written but where they are asked for."""
    sent, said = run(tmp_path / "s.jsonl", "-", *SMALL, "--messages", 5, "--degrees", 0.5)
    assert said == ""
    made = expected(degrees=0.5)
    lines = list(map(json.loads, (tmp_path / "s.jsonl").read_text().splitlines()))
    assert [line["area"] for line in lines] == made.subscriptions(0, 60)["area"].to_pylist()
    assert lines[0].keys() == {"key", "tags", "where", "area"}
    assert sent == b"".join(bytes(message_lines(batch)) for batch in made.messages(0, 5).to_batches())
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


def test_cities(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.parquet" for name in ("subscriptions", "messages", "moves")]
    run(*files[:2], *SMALL, "--cities", CITIES, "--messages", 8, "--moves", files[2], "--move-count", 3)
    made = near_me(pq.read_table(CITIES), 60, 8, 1, moves=3)
    assert all(found.equals(table) for found, table in zip(read(*files), made, strict=True))


def test_refused(tmp_path: Path) -> None:
    target, other = tmp_path / "s.parquet", tmp_path / "m.parquet"
    (line,) = run(target, other, "--names", 4, code=1)[1].splitlines()
    assert "names must be a multiple of topic_names, 5, not 4" in line
    (line,) = run(target, tmp_path / "m.csv", *SMALL, code=1)[1].splitlines()
    assert "m.csv: the name must end in one of" in line
    (line,) = run(target, other, "--cities", tmp_path / "nothing", code=1)[1].splitlines()
    assert "nothing: cannot be read as places" in line
    assert "must be files that differ" in run(target, target, code=2)[1]
    assert "must be files that differ" in run(target, other, "--moves", target, code=2)[1]
    assert "--content" in run(target, other, "--content", "words", code=2)[1]
    assert list(tmp_path.iterdir()) == []


def test_help() -> None:
    """Names each number's source and what it is in each scenario."""
    text = " ".join(run("--help")[0].decode().split())
    assert "Different names of attributes (CLCB Table 1). [default: 100; every: 5]" in text
