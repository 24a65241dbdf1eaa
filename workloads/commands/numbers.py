"""The numbers of a workload as options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import Field, fields, replace
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

_Command: TypeAlias = "Callable[..., None]"


def with_numbers(scenarios: Mapping[str, Any]) -> Callable[[_Command], _Command]:
    """Give a command an option for each field of a data class that `tagmatch.workloads.numbers.number` made.

    The command's parameter `options` is then an object of the class: one of the `scenarios`, which are such objects by
    name, with what the user has given. Where there are several, an option `--scenario` chooses one, the first by
    default.
    """
    default = next(iter(scenarios))
    added = [_parameter(option, scenarios) for option in fields(scenarios[default]) if option.metadata]
    choice = [_scenario(scenarios)] if len(scenarios) > 1 else []

    def decorated(command: _Command) -> _Command:
        @wraps(command)
        def with_options(**arguments: Any) -> None:
            scenario = arguments.pop("scenario", default)
            numbers = {parameter.name: arguments.pop(parameter.name) for parameter in added}
            given = {name: value for name, value in numbers.items() if value is not None}
            command(**arguments, options=replace(scenarios[scenario], **given))

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "options"]
        parameters = [*own, *choice, *added]
        with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return with_options

    return decorated


def _scenario(scenarios: Mapping[str, Any]) -> inspect.Parameter:
    names = StrEnum("Scenario", {name: name for name in scenarios})  # type: ignore[misc]
    option = typer.Option(help="What numbers are where no option says otherwise.")
    default = names(next(iter(scenarios)))
    return inspect.Parameter(
        "scenario", inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[names, option]
    )


def _parameter(option: Field[Any], scenarios: Mapping[str, Any]) -> inspect.Parameter:
    (_, usual), *others = ((name, getattr(options, option.name)) for name, options in scenarios.items())
    defaults = [str(usual), *(f"{name}: {value}" for name, value in others if value != usual)]
    text = f"{option.metadata['text']}  [default: {'; '.join(defaults)}]"
    limits = typer.Option(min=option.metadata["low"], max=option.metadata["high"], help=text, show_default=False)
    kind = int | None if option.type == "int" else float | None
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, limits]
    )
