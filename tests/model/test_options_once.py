"""Options, layouts and channels: each is declared once, and checks what it is given."""

import inspect
from dataclasses import asdict, fields
from pkgutil import resolve_name
from typing import Any, get_args

import pytest
from support.command import tagmatch

from tagmatch import Channel, TagMatch
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.layouts import LAYOUTS
from tagmatch.model.options import Layout, LayoutOptions, MatchOptions, NewOptions, OpenOptions, StagingOptions

#: `None` means a computed value, or an object of defaults, in signatures
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


@pytest.mark.slow
def test_help_shows_the_defaults() -> None:
    text = tagmatch("build", "--help")
    assert "[default: rarest]" in text
    assert str(LayoutOptions().max_partition_size) in text


def test_every_layout_is_there() -> None:
    assert set(LAYOUTS) == set(get_args(Layout))


@pytest.mark.parametrize("layout", get_args(Layout))
def test_every_implementation_is_there(layout: str) -> None:
    named = {role: name for role, name in asdict(LAYOUTS[layout].implementations).items() if name is not None}
    assert {"lay_out", "plan", "subset_match", "cuda"} <= set(named)
    for name in named.values():
        assert callable(resolve_name(name))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "the name of a channel must not be empty"),
        ({"deadline": 0}, "channel 'alarm': deadline must be from 1e-09 to 86,400 seconds, not 0"),
        ({"deadline": float("nan")}, "channel 'alarm': deadline must be from 1e-09 to 86,400 seconds, not nan"),
        ({"priority": 10**7}, "channel 'alarm': priority must be from -1000000 to 1000000, not 10000000"),
        ({"latency_budget": 0.5}, "channel 'alarm': latency_budget must be less than the deadline, 0.5 seconds"),
        ({"latency_budget": -1.0}, "channel 'alarm': latency_budget must be from 0 to 86,400 seconds, not -1.0"),
        ({"expiry": 0.4}, "channel 'alarm': expiry must be at least the deadline, 0.5 seconds, not 0.4"),
    ],
)
def test_values_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        Channel(**{"name": "alarm", "deadline": 0.5, **wrong})  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [{"name": 1}, {"deadline": "5ms"}, {"priority": 1.5}, {"expiry": True}])
def test_values_of_the_wrong_type(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidTypeError, match=f"{next(iter(wrong))} .*must be"):
        Channel(**{"name": "alarm", "deadline": 0.5, **wrong})  # type: ignore[arg-type]
