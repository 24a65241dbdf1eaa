"""A file in TOML as dataclasses: each section is one, and each mistake is an error that names file and line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from tagmatch.model.errors import ConfigError, TagMatchError
from tagmatch.model.names import near_match

T = TypeVar("T")

_HEADER = re.compile(r"\s*\[(\[?)\s*([^\]]+?)\s*\]")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")
#: A key of one of several tables, as messages name it: the number is from 0
_ENTRY = re.compile(r"(\w+)\[(\d+)\]\.(\w+)")
_NAMES = {
    bool: "true or false", int: "an integer", float: "a number", str: "a text", datetime: "a time", dict: "a table",
}  # fmt: skip


class Lines:
    """In which line of a text in TOML something is."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, int, str], int] = {}
        section, seen, number = "", {"": 1}, 0
        for line, content in enumerate(text.splitlines(), 1):
            if found := _HEADER.match(content):
                section = found[2].strip("\"'")
                seen[section] = number = seen.get(section, -1) + 1 if found[1] else 0
                self._lines.setdefault((section, number, ""), line)
            elif found := _KEY.match(content):
                self._lines.setdefault((section, number, found[1]), line)

    def of(self, section: str, number: int = 0, key: str = "") -> int:
        """The line of a key, else that of its section, else the first."""
        places = [(section, number, key), (section, number, ""), ("", 0, section)]
        return next((self._lines[place] for place in places if place in self._lines), 1)

    def of_entry(self, entry: re.Match[str]) -> int:
        """The line of what `_ENTRY` has found."""
        return self.of(entry[1], int(entry[2]), entry[3])


def read_toml(text: str, file: str, kind: type[T]) -> T:
    """The dataclass that a text is: each field of it is a section, a dataclass or a tuple of them.

    Raises
    ------
    ConfigError
        The text is no TOML; a section or a key is not known, missing, or of another type; or a dataclass refuses a
        value: if its message begins with the name of a field, its line is named, and the lines of all keys that it
        names as `section[0].key`.
    """
    lines = Lines(text)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = int(place[1]) if place else len(text.splitlines()) or 1
        raise ConfigError(f"{file}:{line}: {str(error).partition(' (at ')[0]}") from None
    hints, sections = get_type_hints(kind), {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    made: dict[str, Any] = {}
    for name, value in found.items():
        if name not in sections:
            raise ConfigError(f"{file}:{lines.of(name)}: there is no section {name!r}{near_match(name, [*sections])}")
        hint = hints[name]
        if get_origin(hint) is tuple:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise ConfigError(f"{file}:{lines.of(name)}: {name} must be tables: write [[{name}]]")
            own = get_args(hint)[0]
            made[name] = tuple(_made(own, each, name, number, file, lines) for number, each in enumerate(value))
        else:
            if not isinstance(value, dict):
                raise ConfigError(f"{file}:{lines.of(name)}: {name} must be a table: write [{name}]")
            made[name] = _made(hint, value, name, 0, file, lines)
    return _checked(kind, made, "", 0, file, lines)


def _made(kind: Any, table: Mapping[str, Any], section: str, number: int, file: str, lines: Lines) -> Any:
    """One section."""
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    values = {}
    for key, value in table.items():
        line = lines.of(section, number, key)
        if key not in known:
            raise ConfigError(f"{file}:{line}: [{section}] has no {key!r}{near_match(key, [*known])}")
        values[key] = _typed(value, hints[key], f"{file}:{line}: {key}")
    for key, field in known.items():
        if key not in values and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(f"{file}:{lines.of(section, number)}: [{section}] needs {key!r}")
    return _checked(kind, values, section, number, file, lines)


def _checked(kind: type[T], values: dict[str, Any], section: str, number: int, file: str, lines: Lines) -> T:
    try:
        return kind(**values)
    except ConfigError:
        raise
    except TagMatchError as error:
        text = str(error)
        name = text.partition(" ")[0].rstrip(":")
        line = lines.of(section, number, name) if section else lines.of(name)
        if not section and (entry := _ENTRY.match(text)):
            line = lines.of_entry(entry)
            text = _ENTRY.sub(lambda entry: f"{entry[3]} of [[{entry[1]}]] in line {lines.of_entry(entry)}", text)
        raise ConfigError(f"{file}:{line}: {text}") from None


def _typed(value: object, hint: Any, what: str) -> Any:
    """A value of the type that a field has."""
    kinds = [kind for kind in _alternatives(hint) if kind is not NoneType]
    for kind in kinds:
        if get_origin(kind) is Literal:
            if value not in get_args(kind):
                raise ConfigError(f"{what} must be one of {', '.join(map(repr, get_args(kind)))}, not {value!r}")
            return value
        if get_origin(kind) is tuple and isinstance(value, list):
            return tuple(_typed(each, get_args(kind)[0], what) for each in value)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(kind, type) and not is_dataclass(kind) and type(value) is kind:
            return value
    wanted = " or ".join(_NAMES.get(kind, str(kind)) for kind in kinds)
    raise ConfigError(f"{what} must be {wanted}, not {str(value)[:60]!r}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return (hint,) if get_origin(hint) in (None, Literal, tuple) else get_args(hint)
