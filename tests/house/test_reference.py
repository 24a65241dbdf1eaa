"""The reference: every error has its row, every public name stands in it, and its examples run."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest
from support.documents import ROOT

import tagmatch

REFERENCE = ROOT / "docs" / "reference"
NAMES = [name for name in tagmatch.__all__ if name != "__version__"]
ERRORS = {name for name in NAMES if isinstance(kind := getattr(tagmatch, name), type) and issubclass(kind, Exception)}


def described() -> dict[str, object]:
    """What must have an example: public names but errors, and public methods of `TagMatch`."""
    names = {name: getattr(tagmatch, name) for name in NAMES if name not in ERRORS}
    methods = {name: value for name, value in vars(tagmatch.TagMatch).items() if not name.startswith("_")}
    return names | {
        f"TagMatch.{name}": inspect.unwrap(getattr(value, "__func__", value)) for name, value in methods.items()
    }


def test_each_error_says_what_to_do() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", (REFERENCE / "errors.md").read_text())
    assert sorted(name for name, _, _ in rows) == sorted(ERRORS)


def test_each_name_stands_in_the_reference() -> None:
    listed = re.findall(r"(?m)^::: tagmatch\.(\w+)$", (REFERENCE / "python.md").read_text())
    assert sorted(listed) == sorted(set(NAMES) - ERRORS)


#: Still to be given an example; none may be added
WITHOUT = {
    "CudaOptions",
    "PipelineOptions",
    "TagMatch",
    "restore",
    "TagMatch.remove_set",
    "TagMatch.add_sets",
    "TagMatch.remove_subscriptions",
    "TagMatch.remove_sets",
    "TagMatch.consolidate",
    "TagMatch.reload",
    "TagMatch.match_unique",
    "TagMatch.match_many",
    "TagMatch.amatch",
    "TagMatch.explain",
    "TagMatch.save_positions",
    "TagMatch.snapshot",
    "TagMatch.stats",
    "TagMatch.check",
    "TagMatch.save",
    "TagMatch.close",
}


@pytest.mark.parametrize("name", described())
def test_examples_run(name: str) -> None:
    """A class stands for its own text here, not for its methods."""
    value = described()[name]
    (test,) = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(
        value, name, globs={"tagmatch": tagmatch} | vars(tagmatch)
    )
    assert bool(test.examples) == (name not in WITHOUT), f"{name}: has it an example?"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
