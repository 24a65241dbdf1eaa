"""Every option is declared once: signatures, command lines and types for checkers follow the data classes."""

import inspect
from dataclasses import fields
from typing import Any

import pytest
from support.command import tagmatch

from tagmatch import TagMatch
from tagmatch.model.options import LayoutOptions, MatchOptions, NewOptions, OpenOptions, StagingOptions

#: `None` stands for what is computed, or for an object of defaults, in signatures
COMPUTED = {"threads", "pipeline", "cuda"}
#: What is opened
ARGUMENTS = {"self", "path", "key_type", "snapshot"}


def declared() -> dict[str, Any]:
    return {
        each.name: None if each.name in COMPUTED else each.default
        for options in (LayoutOptions, MatchOptions, StagingOptions)
        for each in fields(options)
    }


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.name not in ARGUMENTS}


def test_signatures_have_every_option_with_its_default() -> None:
    assert defaults(TagMatch.__init__) == declared()
    assert defaults(TagMatch.open) == declared() | {"layout": None, "max_partition_size": None}


@pytest.mark.parametrize("options", [NewOptions, OpenOptions])
def test_type_checkers_know_every_option(options: Any) -> None:
    assert set(options.__annotations__) == set(declared())


def test_help_shows_the_defaults() -> None:
    text = tagmatch("build", "--help")
    assert "[default: rarest]" in text
    assert str(LayoutOptions().max_partition_size) in text
