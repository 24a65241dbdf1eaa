"""Rules of the code and its tests: modules that name layouts, mistakes that are tried, and the end of a run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS
from support.documents import ROOT

FOLDERS = {"broker", "model", "partitioner", "pipeline", "tagmatch", "workloads"}
QUESTION = re.compile("layout" + " (==|in )")


def asking(folder: Path) -> list[str]:
    """Lines with a question, except in `model/layouts.py`; links are not followed."""
    found = []
    for parent, _, names in os.walk(folder):
        own = ROOT / "model" / "layouts.py"
        for file in (Path(parent, name) for name in names if name.endswith(".py") and Path(parent, name) != own):
            lines = enumerate(file.read_text().splitlines(), 1)
            found += [f"{file}:{number}: {line}" for number, line in lines if QUESTION.search(line)]
    return found


def test_what_depends_on_a_layout_is_named_in_its_own_module(tmp_path: Path) -> None:
    """Nothing else asks which layout it is; and a question is found."""
    assert [line for folder in FOLDERS | {"examples", "tests"} for line in asking(ROOT / folder)] == []
    name = "layout"
    (tmp_path / "a.py").write_text(f"{name} = 'x'\n{name} == 'x'\n{name}s in ['y']\n{name} in ['y']\n")
    assert [line.partition(".py:")[2].partition(":")[0] for line in asking(tmp_path)] == ["2", "4"]


def test_mutants_fit_the_code() -> None:
    """Each mistake of `make mutants` fits the code as it is, and the files of its tests are there."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} == FOLDERS
    for mutant in MUTANTS:
        assert mutant.mutated(ROOT) != (ROOT / mutant.file).read_text(), mutant.name
        files = [name.partition("::")[0] for name in mutant.tests.split() if name.startswith("tests/")]
        assert files, mutant.name
        assert all((ROOT / name).exists() for name in files), mutant.tests


@pytest.mark.slow
def test_a_test_that_ends_its_process_fails_by_its_name_and_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "test_dies.py").write_text("import os\ndef test_before(): pass\ndef test_dies(): os._exit(3)\n")
    (tmp_path / "test_sound.py").write_text("def test_sound(): pass\n")
    options = ["-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-n1", "--dist=loadfile", "."]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "crashed while running 'test_dies.py::test_dies'" in done.stdout
