"""The public interface, a line each: names, signatures, fields, methods, and options of commands.

`api.txt` next to this file is that of the last release, with the decisions since. `python release/api.py` compares
the two; with `--accept` it writes the file, so that a break is on purpose, and seen in review.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

import tagmatch
import tagmatch.importing
import tagmatch.spark
from tagmatch.broker.client import RemoteTagMatch, Subscriber
from tagmatch.cli.app import app, partition
from tagmatch.workloads.commands import app as workload_app

RECORDED = Path(__file__).with_name("api.txt")
#: What callers get, though they do not import it
_RETURNED = {"tagmatch.connect()": RemoteTagMatch, "RemoteTagMatch.subscriber()": Subscriber}
_partition = typer.Typer(add_completion=False)
_partition.command()(partition)
_COMMANDS = {"tagmatch": app, "tagmatch-partition": _partition, "tagmatch-workload": workload_app}


def public() -> list[str]:
    """All lines, sorted."""
    lines: list[str] = []
    for module in (tagmatch, tagmatch.importing, tagmatch.spark):
        for name in module.__all__:
            lines += _described(f"{module.__name__}.{name}", getattr(module, name))
    for name, kind in _RETURNED.items():
        lines += _described(name, kind)
    for name, command_line in _COMMANDS.items():
        lines += _options(name, typer.main.get_command(command_line))
    return sorted(set(lines))


def differences(lines: Iterable[str], recorded: Path = RECORDED) -> list[str]:
    """What was added (`+`) and taken away (`-`) since it was recorded."""
    compared = difflib.unified_diff(recorded.read_text().splitlines(), list(lines), lineterm="", n=0)
    return [line for line in compared if line[0] in "+-" and line[:3] not in ("+++", "---")]


def _described(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{inspect.signature(value)}" if callable(value) else f"{name}: {type(value).__name__}"
        return
    yield f"{name}({', '.join(base.__name__ for base in value.__bases__)})"
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            yield f"{name}.{field.name}: {field.type}{default}"
    elif not issubclass(value, Exception):
        yield f"{name}.__init__{inspect.signature(value)}"
    for member, given in _members(value).items():
        if member.startswith("_") and not (member.startswith("__") and callable(given) and member in _SPECIAL):
            continue
        if isinstance(given, property):
            yield f"{name}.{member}: {_result(given)}"
        elif isinstance(given, staticmethod | classmethod) or inspect.isfunction(given):
            yield f"{name}.{member}{inspect.signature(getattr(value, member))}"


def _members(kind: type) -> dict[str, Any]:
    """What a class has, also of a base class of the product."""
    own = [base for base in reversed(kind.__mro__) if base.__module__.partition(".")[0] == "tagmatch"]
    return {name: given for base in own for name, given in vars(base).items()}


#: Methods that operators and statements call
_SPECIAL = {"__contains__", "__enter__", "__exit__", "__iter__", "__len__", "__next__"}


def _result(given: property) -> str:
    return str(inspect.signature(given.fget).return_annotation) if given.fget else ""


def _options(name: str, command: Any) -> Iterator[str]:
    """A command, its arguments and options, and so on for commands of it."""
    yield f"$ {name}"
    for each in command.params:
        if each.name in ("install_completion", "show_completion"):
            continue
        kind = "" if each.param_type_name == "argument" or each.is_flag else " VALUE"
        shown = (
            f"[{each.name}]" if each.param_type_name == "argument" else ", ".join([*each.opts, *each.secondary_opts])
        )
        yield f"$ {name} {shown}{kind}"
    for inner, child in getattr(command, "commands", {}).items():
        yield from _options(f"{name} {inner}", child)


def main() -> None:
    """Compare, or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true", help="write what there is to api.txt")
    if parser.parse_args().accept:
        RECORDED.write_text("\n".join(public()) + "\n")
    elif found := differences(public()):
        sys.exit(
            "\n".join([*found, "The public interface has changed. If it is meant: python release/api.py --accept"])
        )


if __name__ == "__main__":
    main()
