"""The mistakes that `make mutants` makes: each fits the code as it is, and the files of its tests are there."""

from __future__ import annotations

from pathlib import Path

from mutants import MUTANTS

ROOT = Path(__file__).parents[2]
FOLDERS = {"broker", "model", "partitioner", "pipeline", "tagmatch", "workloads"}


def test_mutants_fit_the_code() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    assert {mutant.file.partition("/")[0] for mutant in MUTANTS} == FOLDERS
    for mutant in MUTANTS:
        assert mutant.mutated(ROOT) != (ROOT / mutant.file).read_text(), mutant.name
        files = [name.partition("::")[0] for name in mutant.tests.split() if name.startswith("tests/")]
        assert files, mutant.name
        assert all((ROOT / name).exists() for name in files), mutant.tests
