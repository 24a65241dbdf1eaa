"""What goes over the wire beside Arrow data: commands, tickets and bodies of actions, as JSON objects.

All of it may come from anyone: it is read with care, and nothing of it is ever run or unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, get_args, get_type_hints

import numpy as np
import pyarrow as pa

from tagmatch.files import json_values
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.areas import Area, Box, Circle, Near
from tagmatch.model.names import near_match

#: Bytes of a command, a ticket or the body of an action
MAX_JSON = 1 << 20

#: An area as a row of Arrow has it
AREA_TYPE = pa.struct(
    [("kind", pa.string())]
    + [(name, pa.float64()) for name in ("lon", "lat", "metres", "west", "south", "east", "north")]
)
_AREAS: dict[str, type[Area]] = {"circle": Circle, "box": Box, "near": Near}


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """The object that bytes hold; `what` is how messages call them.

    Raises
    ------
    InvalidValueError
        They hold no JSON object, or too long a one.

    Examples
    --------
    >>> read_json(b'{"command": "match"}', "the descriptor")
    {'command': 'match'}
    """
    if len(data) > MAX_JSON:
        raise InvalidValueError(f"{what} must have at most {MAX_JSON:,} bytes, not {len(data):,}")
    found = json_values.read_json(data, what) if data else {}
    if not isinstance(found, dict):
        raise InvalidValueError(f"{what} must be a JSON object, not {type(found).__name__}")
    return found


def write_json(value: Mapping[str, Any]) -> bytes:
    """The bytes of an object, also of one with numbers of NumPy and with sets.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        A value has no form in JSON.
    """
    try:
        return json.dumps(value, default=_plain, allow_nan=False).encode()
    except ValueError:
        raise InvalidValueError("NaN and infinities have no form in JSON; over a connection match takes them") from None


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, set | frozenset | tuple | np.ndarray):
        return list(value)
    raise InvalidTypeError(f"a value must be a bool, a number or a string, not {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Options:
    """Options in JSON: a dataclass, whose fields are what may be there."""

    @classmethod
    def of(cls, found: Mapping[str, Any], what: str) -> Self:
        """Options that were found; `what` is how messages call them.

        Raises
        ------
        InvalidTypeError, InvalidValueError
            One is not known, or of another type.
        """
        hints = get_type_hints(cls)
        known = [field.name for field in fields(cls)]
        for name, value in found.items():
            if name not in known:
                raise InvalidValueError(f"{what} has no option {name[:60]!r}{near_match(name, known)}")
            kinds = get_args(hints[name]) or (hints[name],)
            if (isinstance(value, bool) and bool not in kinds) or not isinstance(value, kinds):
                wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
                raise InvalidTypeError(f"{what}: {name} must be {wanted}, not {str(value)[:60]!r}")
        return cls(**found)


@dataclass(frozen=True, slots=True)
class MatchOptions(Options):
    """How the messages of a stream are matched.

    Attributes
    ----------
    unique : bool
        Give each key of a message once, ascending.
    plain : bool
        Answers have no ids.
    coalesce : bool
        Answers to several batches may come as one, in the same order.
    channel : str, optional
        The channel of the messages. Those that are not answered in time have nulls for keys, in a batch whose metadata
        is the error; the stream goes on.
    """

    unique: bool = False
    plain: bool = False
    coalesce: bool = False
    channel: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeOptions(Options):
    """What becomes of changes.

    Attributes
    ----------
    commit : bool
        They are in effect when the call returns, not staged.
    match_all : bool
        As of `TagMatch.add_subscriptions`.
    missing : {"ignore", "error"}
        As of `TagMatch.remove_subscriptions`.
    """

    commit: bool = False
    match_all: bool = False
    missing: str = "ignore"


def area_row(area: Area | None) -> dict[str, Any] | None:
    """An area as a struct of `AREA_TYPE`, or in JSON.

    Examples
    --------
    >>> area_row(Near(500))
    {'kind': 'near', 'metres': 500.0}
    """
    if area is None:
        return None
    (kind,) = (name for name, each in _AREAS.items() if isinstance(area, each))
    return {"kind": kind, **{field.name: getattr(area, field.name) for field in fields(area)}}


def area_of(row: object, what: str) -> Area | None:
    """The area that `area_row` has written.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        It is none.
    """
    if row is None:
        return None
    if not isinstance(row, dict) or row.get("kind") not in _AREAS:
        raise InvalidValueError(f"{what} must be an object whose kind is {', '.join(_AREAS)}")
    kind = _AREAS[row["kind"]]
    numbers = {name: value for name, value in row.items() if name != "kind"}
    if sorted(numbers) != sorted(field.name for field in fields(kind)):
        raise InvalidValueError(f"{what} must have the numbers {', '.join(field.name for field in fields(kind))}")
    return kind(**numbers)
