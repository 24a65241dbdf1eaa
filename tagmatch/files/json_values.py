"""How a text of JSON becomes a value: the same for lines, cells, payloads and whatever else comes as JSON.

It is the JSON of RFC 8259 in UTF-8, with or without a byte order mark before it. RFC 8259 leaves some questions open.
Here, names in an object differ, no string has half of a surrogate pair, and arrays and objects are nested `MOST_NESTED`
deep at most. Integers are exact. Other numbers are the nearest double, which is infinite for a number that is too
large, as in expressions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from tagmatch.model.errors import InvalidValueError

#: How deep arrays and objects may be nested
MOST_NESTED = 64

#: A byte order mark, which some programs write before UTF-8
MARK = "\ufeff"

_SPACE = " \t\r\n"
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class Repeated(dict[str, Any]):
    """An object in which a name stands more than once; it has the last value of that name.

    Attributes
    ----------
    names : list of str
        Such names.
    seen : object
        Another one as soon as there is another of these.
    """

    names: list[str]
    seen = object()


def read_json(text: str | bytes, what: str) -> Any:
    """The value that a text has.

    Parameters
    ----------
    text : str or bytes
    what : str
        What messages call it.

    Raises
    ------
    InvalidValueError
        It is no JSON, or such as the module says that it must not be.

    Examples
    --------
    >>> read_json(b'{"price": [9, 1e400]}', "the payload")
    {'price': [9, inf]}
    """
    try:
        value, has_repeated = parsed(text)
        if has_repeated:
            refuse_repeated(value)
    except ValueError as error:
        raise InvalidValueError(f"{what} is no JSON: {error}") from None
    return value


def parsed(text: str | bytes) -> tuple[Any, bool]:
    """The value that a text has, and whether there may be `Repeated` objects in it.

    Raises
    ------
    ValueError
        As `read_json`; the message says why, but not of what.
    """
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair") from None
    else:
        text = utf8_text(text)
    text = text.removeprefix(MARK).strip(_SPACE)
    if "\0" in text:
        raise ValueError("it has zero bytes")
    seen = Repeated.seen
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (character {error.pos + 1})") from None
    except _OtherError:
        raise
    except ValueError:  # of Python, about digits
        raise ValueError("an integer has thousands of digits") from None
    if end != len(text):
        raise ValueError(f"there is more behind it (from character {end + 1} on)")
    if text.count("[") + text.count("{") > MOST_NESTED and _is_deep(value):
        raise ValueError(_TOO_DEEP)
    if "\\u" in text and _HALF.search(text) and _has_half(value):
        raise ValueError("a string has half of a surrogate pair")
    return value, Repeated.seen is not seen


def utf8_text(data: bytes) -> str:
    """The text whose UTF-8 the bytes are.

    Raises
    ------
    ValueError
        They are none; the message says which byte is wrong.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} is no UTF-8") from None


def refuse_repeated(value: Any) -> None:
    """See that no object in a value of `parsed` has a name twice.

    Raises
    ------
    ValueError
        One has.
    """
    waiting = [value]
    while waiting:
        some = waiting.pop()
        if isinstance(some, Repeated):
            raise ValueError(f"an object has {json.dumps(some.names[0])[:60]} more than once")
        if isinstance(some, dict | list):
            waiting += [each for each in _within(some) if isinstance(each, dict | list)]


class _OtherError(ValueError):
    """Something that Python's reader lets pass."""


_TOO_DEEP = f"it is nested more than {MOST_NESTED} deep"


def _within(value: dict[str, Any] | list[Any]) -> Any:
    return value.values() if isinstance(value, Mapping) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = Repeated(found)
    Repeated.seen = object()
    repeated.names = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    return repeated


def _constant(name: str) -> NoReturn:
    raise _OtherError(f"{name} is no value of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_NESTED + 1):
        level = [some for some in level if isinstance(some, dict | list)]
        if not level:
            return False
        level = [each for some in level for each in _within(some)]
    return True


def _has_half(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
