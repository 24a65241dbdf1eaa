"""What depends on a layout is named in its own module: nothing else asks which layout it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from support.documents import ROOT

FOLDERS = ("broker", "examples", "model", "partitioner", "pipeline", "tagmatch", "tests", "workloads")
QUESTION = re.compile("layout" + " (==|in )")


def asking(folder: Path) -> list[str]:
    """Lines with a question, but in `model/layouts`; links are not followed."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(parent, name) != ROOT / "model" / "layouts"]
        for file in (Path(parent, name) for name in names if name.endswith(".py")):
            lines = enumerate(file.read_text().splitlines(), 1)
            found += [f"{file}:{number}: {line}" for number, line in lines if QUESTION.search(line)]
    return found


def test_nothing_else_asks_which_layout_it_is(tmp_path: Path) -> None:
    """And a question is found."""
    assert [line for folder in FOLDERS for line in asking(ROOT / folder)] == []
    name = "layout"
    (tmp_path / "a.py").write_text(f"{name} = 'x'\n{name} == 'x'\n{name}s in ['y']\n{name} in ['y']\n")
    assert [line.partition(".py:")[2].partition(":")[0] for line in asking(tmp_path)] == ["2", "4"]
