"""The command `tagmatch-workload content`, as a person or a script runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tagmatch.workloads.content import SCENARIOS, Content
from tagmatch.workloads.content.text import where_texts

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-c", "from tagmatch.workloads.commands.workload import main; main()", "content"]
SMALL = {"interfaces": 3, "min_filters": 10, "max_filters": 20, "names": 30, "strings": 0.5}


def run(*arguments: object, code: int = 0) -> tuple[bytes, str]:
    """Run the command; returns what it writes on standard output and says on standard error."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr.decode()


def given(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def expected(scenario: str = "pcm", **options: Any) -> Content:
    return Content(replace(SCENARIOS[scenario], **options))


def present(content: Content, count: int) -> list[dict[str, Any]]:
    return [{name: x for name, x in row.items() if x is not None} for row in content.messages(0, count).to_pylist()]


@pytest.mark.parametrize("threads", [1, 3])
def test_parquet(tmp_path: Path, threads: int) -> None:
    files = tmp_path / "subscriptions.parquet", tmp_path / "messages.parquet"
    assert run(*files, *given(SMALL), "--messages", 70, "--threads", threads, "--seed", 9) == (b"", "")
    content = expected(**SMALL, seed=9)
    assert pq.read_table(files[0]).equals(content.subscriptions(0, content.filters))
    assert pq.read_table(files[1]).equals(content.messages(0, 70))


def test_where_in_parquet(tmp_path: Path) -> None:
    run(tmp_path / "s.parquet", tmp_path / "m.parquet", *given(SMALL), "--where")
    table = pq.read_table(tmp_path / "s.parquet")
    content = expected(**SMALL)
    assert table.drop_columns("where").equals(content.subscriptions(0, content.filters))
    assert table["where"].to_pylist() == where_texts(table["constraints"].combine_chunks()).to_pylist()
    assert len(pq.read_table(tmp_path / "m.parquet")) == 1000


def test_json_lines(tmp_path: Path) -> None:
    """Subscriptions in a file, messages on standard output; numbers are those of the scenario but for what is given."""
    changed = {"interfaces": 40, "names": 25}
    sent, said = run(tmp_path / "s.jsonl", "-", *given(changed), "--scenario", "dense", "--messages", 5)
    assert said == ""
    content = expected("dense", **changed)
    assert content.filters == 40
    stored = content.subscriptions(0, 40)
    where = where_texts(stored["constraints"].combine_chunks()).to_pylist()
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"key": i, "tags": [], "where": text} for i, text in enumerate(where)]
    assert list(map(json.loads, sent.splitlines())) == present(content, 5)


def test_no_messages(tmp_path: Path) -> None:
    run(tmp_path / "s.jsonl", tmp_path / "m.parquet", *given(SMALL), "--messages", 0)
    table = pq.read_table(tmp_path / "m.parquet")
    assert (len(table), table.schema) == (0, expected(**SMALL).messages_schema)


def test_refused(tmp_path: Path) -> None:
    target = tmp_path / "s.parquet"
    (line,) = run(target, tmp_path / "m.parquet", "--names", 4, code=1)[1].splitlines()
    assert "max_constraints must be at most names, 4, not 5" in line
    (line,) = run(target, tmp_path / "m.csv", *given(SMALL), code=1)[1].splitlines()
    assert "m.csv: the name must end in one of" in line
    assert list(tmp_path.iterdir()) == []
    assert "must be another one" in run(target, target, code=2)[1]
    assert "--scenario" in run(target, tmp_path / "m.parquet", "--scenario", "sparse", code=2)[1]
    assert "--names" in run(target, tmp_path / "m.parquet", "--names", 0, code=2)[1]


def test_help() -> None:
    """Names each number's source and what it is in each scenario."""
    text = " ".join(run("--help")[0].decode().split())
    assert "Different names of attributes (PCM Table 1). [default: 100; dense: 20]" in text
    assert "CCM Table 1: 50 % of constraints). [default: 0.0; ccm: 0.5]" in text
