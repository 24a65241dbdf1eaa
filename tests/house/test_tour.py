"""The notebook of examples/ runs, and shows what stands in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TOUR = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def execute(notebook: Any) -> None:
    """Run all cells in a kernel of its own, which imports the tagmatch that this process does."""
    # Without it a kernel that is spawned would import what is installed
    path = os.pathsep.join([str(TOUR.parents[1]), os.environ.get("PYTHONPATH", "")])
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": TOUR.parent}})
    client.execute(env={**os.environ, "PYTHONPATH": path})


def shown(cell: Any) -> list[str]:
    """What a cell shows; sets of strings have no order of their own in text, but have one as HTML."""
    return [
        each.text if each.output_type == "stream" else each.data.get("text/html", each.data["text/plain"])
        for each in cell.outputs
    ]


@pytest.mark.slow
def test_the_tour_shows_what_it_says() -> None:
    written, run = nbformat.read(TOUR, 4), nbformat.read(TOUR, 4)
    execute(run)
    compared = 0
    for before, after in zip(written.cells, run.cells, strict=True):
        if before.cell_type != "code":
            continue
        if "varies" in before.metadata.get("tags", []):
            assert len(shown(after)) == len(shown(before)) > 0
        else:
            assert shown(after) == shown(before), before.source
            compared += len(shown(after))
    assert compared >= 8


def test_a_cell_that_fails_is_noticed() -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("import tagmatch\ntagmatch.nothing_of_that_name")]
    )
    with pytest.raises(CellExecutionError, match="nothing_of_that_name"):
        execute(notebook)
