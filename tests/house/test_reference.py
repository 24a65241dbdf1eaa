"""The reference: every error has its row, every public name is in it, and its examples run."""

import doctest
import inspect
import re

import griffe
import pytest
from support.documents import ROOT

import tagmatch
from tagmatch import spark
from tagmatch.index import Index
from tagmatch.model.where.constraints import OPERATORS

REFERENCE, SITE = ROOT / "docs" / "reference", ROOT / "docs" / "site"
NAMES = [name for name in tagmatch.__all__ if name != "__version__"]
ERRORS = {name for name in NAMES if isinstance(kind := getattr(tagmatch, name), type) and issubclass(kind, Exception)}


def described() -> dict[str, object]:
    """What must have an example: public names but errors, and public methods of `TagMatch`."""
    names = {name: getattr(tagmatch, name) for name in NAMES if name not in ERRORS}
    kinds = (Index, tagmatch.TagMatch)
    methods = {name: value for kind in kinds for name, value in vars(kind).items() if not name.startswith("_")}
    return names | {
        f"TagMatch.{name}": inspect.unwrap(getattr(value, "__func__", value)) for name, value in methods.items()
    }


def test_each_error_says_what_to_do() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", (REFERENCE / "errors.md").read_text())
    assert sorted(name for name, _, _ in rows) == sorted(ERRORS)


def test_each_operator_has_its_row() -> None:
    rows = [f"| `{own.syntax}` | {own.means} |" for own in OPERATORS.values() if not own.negated]
    text = (ROOT / "docs" / "guide" / "constraints.md").read_text()
    assert "\n".join(["| test | holds for a value that |", "|---|---|", *rows]) in text


@pytest.mark.parametrize(
    ("page", "package", "names"), [("python.md", "tagmatch", NAMES), ("spark.md", "tagmatch.spark", spark.__all__)]
)
def test_each_name_stands_in_the_reference(page: str, package: str, names: list[str]) -> None:
    listed = re.findall(rf"(?m)^::: {re.escape(package)}\.(\w+)$", (REFERENCE / page).read_text())
    assert sorted(listed) == sorted(set(names) - ERRORS)


#: Loads or compiles every kernel
LONG = {"warm_up"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in LONG else []) for name in described()]
)
def test_examples_run(name: str) -> None:
    """A class means its own text here, not its methods."""
    value = described()[name]
    (test,) = doctest.DocTestFinder(recurse=False, exclude_empty=False).find(
        value, name, globs={"tagmatch": tagmatch} | vars(tagmatch)
    )
    assert test.examples, f"{name} has no example"
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


#: What raises no error
RAISE_NOTHING = {"close", "words", "and_also"}


@pytest.mark.slow
def test_functions_say_what_they_take_return_and_raise() -> None:
    extensions = griffe.load_extensions(SITE / "parameters.py")
    package = griffe.load("tagmatch", search_paths=[ROOT], docstring_parser="numpy", extensions=extensions)
    named = [package[name].final_target if package[name].is_alias else package[name] for name in set(NAMES) - ERRORS]
    kinds = [package["index.Index"], *(kind for kind in named if kind.is_class)]
    members = [each for kind in kinds for each in kind.members.values() if not each.is_alias]
    for each in (each for each in [*named, *members] if each.is_function and not each.name.startswith("_")):
        sections = [section.value for section in each.docstring.parsed if section.kind.value == "parameters"]
        said = {section.kind.value for section in each.docstring.parsed}
        assert str(each.returns) == "None" or "returns" in said, each.path
        assert "raises" in said or each.name in RAISE_NOTHING, each.path
        shown = {parameter.name: parameter for section in sections for parameter in section}
        names = {parameter.name for parameter in each.parameters} - {"self", "cls"}
        assert not shown or names <= shown.keys(), each.path
        assert all(parameter.annotation and parameter.description for parameter in shown.values()), each.path
    shown = {each.name: each for each in package["TagMatch.open"].docstring.parsed[1].value}
    kinds = [str(shown[name].annotation) for name in ("exact", "device", "durability")]
    assert kinds == ["bool", "Device", "Durability | None"]
    assert shown["device"].default == "'auto'"


def test_commands_are_called_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    import hooks

    used = re.findall(r"Usage: (\S+) (\S+)", hooks.commands())
    assert used
    assert {program for program, _ in used} == {"tagmatch"}
