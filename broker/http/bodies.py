"""Bodies of requests and of answers: JSON, and errors as `application/problem+json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from tagmatch.broker.answers import KIND_NAMES, kinds_of, unknown_option
from tagmatch.broker.wire import http_status_of, line_of, name_of, write_json
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.options import KeyType

Headers = list[tuple[bytes, bytes]]
JSON, PROBLEM = b"application/json", b"application/problem+json"
#: The header that says what may be wrong with messages, which are answered all the same
NOTE = b"Tagmatch-Note"


class RefusedError(InvalidValueError):
    """A request for which HTTP has a status."""

    def __init__(self, status: int, text: str, headers: Headers | None = None) -> None:
        super().__init__(text)
        self.status, self.headers = status, headers or []


class Answer(NamedTuple):
    """A whole answer."""

    body: bytes
    status: int = 200
    kind: bytes = JSON
    headers: Headers = []  # noqa: RUF012 - it is never changed


def problem_of(error: BaseException) -> Answer:
    """What a client is told of an error."""
    status, headers = http_status_of(error), Headers()
    if isinstance(error, RefusedError):
        status, headers = error.status, error.headers
    if status == 401:
        headers = [(b"www-authenticate", b"Bearer")]
    elif status in (429, 503):
        headers = [(b"retry-after", b"1")]
    found = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": line_of(error),
        "kind": name_of(error) if isinstance(error, TagMatchError) else "TagMatchError",
    }
    return Answer(write_json(found), status, PROBLEM, headers)


def text_of_path(raw: bytes) -> str:
    """A part of a path as it was before it was written with `%`."""
    try:
        return (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise InvalidValueError("the path is no UTF-8") from None


def key_in(text: str, key_type: KeyType) -> int | str:
    """The key that the end of a path is."""
    if key_type == "string":
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise InvalidValueError(f"keys of this index are integers from 0 to 2^64 - 1, not {text[:60]!r}")
    return int(text)


_WORDS = {"true": True, "false": False}


def query_options(call: Callable[..., Any], query: bytes, what: str) -> dict[str, Any]:
    """Options in a query such as `commit=false&limit=10`, by the types of the call's keywords."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise InvalidValueError(f"{what}: the query of the URL cannot be read") from None
    known, found = kinds_of(call), dict[str, Any]()
    for name, text in pairs:
        if name not in known:
            raise unknown_option(what, name, [*known])
        if list in known[name]:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise InvalidValueError(f"{what}: {name} must be given once")
        else:
            found[name] = _typed(known[name], text, f"{what}: {name}")
    return found


def _typed(kinds: tuple[type, ...], text: str, what: str) -> Any:
    if bool in kinds:
        if text not in _WORDS:
            raise InvalidTypeError(f"{what} must be true or false, not {text[:60]!r}")
        return _WORDS[text]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                if str not in kinds:
                    raise InvalidTypeError(f"{what} must be {KIND_NAMES[kind]}, not {text[:60]!r}") from None
    if str not in kinds:
        raise InvalidTypeError(f"{what} has no form in a URL; give it in the body")
    return text


def with_options(given: Mapping[str, Any], more: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Options of a body and of a query together."""
    for name in given.keys() & more.keys():
        raise InvalidValueError(f"{what}: {name} is given in the URL and in the body; give it once")
    return {**given, **more}
