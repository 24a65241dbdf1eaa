"""Imported by the process whose forks run the command `tagmatch`: has in memory what most commands need."""

from __future__ import annotations

import gc
import json
import tempfile
from pathlib import Path
from typing import get_args

from typer.testing import CliRunner

import tagmatch.cli.descriptors
import tagmatch.cli.imports
import tagmatch.cli.interrupt
import tagmatch.cli.run
import tagmatch.files.csv_lines
import tagmatch.files.parquet  # noqa: F401 - for the forks
from tagmatch.cli.app import app
from tagmatch.model.options import Layout


def _load() -> None:
    """Modules that are imported as commands run, and kernels; all with one thread, as this process is forked."""
    with tempfile.TemporaryDirectory() as folder:
        sets, queries = Path(folder, "sets.jsonl"), Path(folder, "queries.jsonl")
        sets.write_text(json.dumps({"tags": ["a", "b"], "key": 1}) + "\n")
        queries.write_text(json.dumps({"tags": ["a", "b"]}) + "\n")
        for name in get_args(Layout):
            index = f"{folder}/{name}"
            for command in (
                ["--help"],
                ["build", str(sets), index, "--layout", name],
                ["match", index, str(queries), "--output", f"{index}.jsonl"],
                ["info", index],
                ["check", index],
            ):
                threads = ["--threads", "1"] if command[0] in ("build", "match") else []
                result = CliRunner().invoke(app, [*command, *threads])
                assert result.exit_code == 0, result.output
    gc.collect()
    gc.freeze()  # else the next collection writes to, and so copies, all memory that forks share


_load()
