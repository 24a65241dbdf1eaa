"""Imported by the process whose forks run the command `tagmatch`: has in memory what most commands need."""

import gc
import tempfile
from pathlib import Path
from typing import get_args

from typer.testing import CliRunner

import tagmatch.cli.shared
import tagmatch.files.csv
import tagmatch.files.rows  # noqa: F401 - for the forks
from tagmatch.cli.app import app
from tagmatch.model.kernels.interpreted import compile_at_once
from tagmatch.model.options import Layout

compile_at_once()

# Modules that are imported as commands run, and kernels; all with one thread, as this process is forked
with tempfile.TemporaryDirectory() as folder:
    rows = Path(folder, "rows.jsonl")
    rows.write_text('{"tags": ["a", "b"], "key": 1}\n')
    for each in get_args(Layout):
        index = f"{folder}/{each}"
        for command in (
            f"build {rows} {index} --layout {each} --threads 1", f"match {index} {rows} -o {index}.jsonl --threads 1",
            f"info {index}", f"check {index}", "--help",
        ):  # fmt: skip
            result = CliRunner().invoke(app, command.split())
            assert result.exit_code == 0, result.output
gc.collect()
gc.freeze()  # else the next collection writes to, and so copies, all memory that forks share
