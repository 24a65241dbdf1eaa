"""What goes over the wire beside Arrow data: commands, tickets and bodies of actions as JSON objects, and errors.

All of it may come from anyone: it is read with care, and nothing of it is ever run or unpickled. Errors of the engine
become those of Flight, and the same ones again at the client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from tagmatch.files import json as json_values
from tagmatch.model import errors as known_errors
from tagmatch.model.errors import (
    AccessError,
    InvalidTypeError,
    InvalidValueError,
    Overloaded,
    TagMatchError,
    UnavailableError,
)
from tagmatch.model.where.areas import Area, Box, Circle, Near

#: Bytes of a command, a ticket or the body of an action
MAX_JSON = 1 << 20

#: An area as a row of Arrow has it
AREA_TYPE = pa.struct(
    [("kind", pa.string())]
    + [(name, pa.float64()) for name in ("lon", "lat", "metres", "west", "south", "east", "north")]
)
_AREAS: dict[str, type[Area]] = {"circle": Circle, "box": Box, "near": Near}


def read_json(data: bytes, what: str) -> dict[str, Any]:
    """The object that bytes hold; `what` is how messages call them."""
    if len(data) > MAX_JSON:
        raise InvalidValueError(f"{what} must have at most {MAX_JSON:,} bytes, not {len(data):,}")
    found = json_values.read_json(data, what) if data else {}
    if not isinstance(found, dict):
        raise InvalidValueError(f"{what} must be a JSON object, not {type(found).__name__}")
    return found


def write_json(value: Mapping[str, Any]) -> bytes:
    """The bytes of an object, also of one with numbers of NumPy and with sets."""
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


def in_url(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def area_row(area: Area | None) -> dict[str, Any] | None:
    """An area as a struct of `AREA_TYPE`, or in JSON."""
    if area is None:
        return None
    (kind,) = (name for name, each in _AREAS.items() if isinstance(area, each))
    return {"kind": kind, **{field.name: getattr(area, field.name) for field in fields(area)}}


def area_of(row: object, what: str) -> Area | None:
    """The area that `area_row` has written."""
    if row is None:
        return None
    if not isinstance(row, dict) or row.get("kind") not in _AREAS:
        raise InvalidValueError(f"{what} must be an object whose kind is {', '.join(_AREAS)}")
    kind = _AREAS[row["kind"]]
    numbers = {name: value for name, value in row.items() if name != "kind"}
    if sorted(numbers) != sorted(field.name for field in fields(kind)):
        raise InvalidValueError(f"{what} must have the numbers {', '.join(field.name for field in fields(kind))}")
    return kind(**numbers)


_KINDS: dict[str, type[TagMatchError]] = {
    name: kind
    for name, kind in vars(known_errors).items()
    if isinstance(kind, type) and issubclass(kind, TagMatchError)
}

#: What gRPC says where there is no connection, and what that means to who has asked for one
_NO_CONNECTION = {
    "wrong version number": "what is there speaks no TLS: connect with grpc://, or give the service tls_cert and "
    "tls_key; and see that this is the port of [server], not that of [metrics]",
    "Failed parsing HTTP/2": "what is there is no such service, but perhaps its metrics: give the port of [server], by "
    "default 8815",
    "certificate verify failed": "its certificate is signed by nobody known here: give the authority's as "
    "tls_root_certs, as bytes of PEM",
    "Socket closed": "it has closed the connection at once; if it has TLS, connect with grpc+tls://, and if it has "
    "client_ca, show cert_chain and private_key",
    "Connection refused": "nothing listens there; is the service started, and is the port right?",
}

INTERNAL = "the service has failed; its log says why"
_MOST = 2000


class UnauthenticatedError(AccessError):
    """There is no token that the service knows: an `AccessError` at the client."""


class GoneError(Exception):
    """The client is gone, or its call was ended: nothing more comes or goes."""


#: How Flight tells kinds of errors over gRPC: by a status of gRPC, and by a word
_STATUSES: tuple[tuple[type[TagMatchError], str, str], ...] = (
    (UnauthenticatedError, "UNAUTHENTICATED", "Unauthenticated"),
    (AccessError, "PERMISSION_DENIED", "Unauthorized"),
    (Overloaded, "UNAVAILABLE", "Unavailable"),
    (UnavailableError, "UNAVAILABLE", "Unavailable"),
    (TagMatchError, "UNKNOWN", "Failed"),
)
_IO_ERROR = "5"


def _known(error: BaseException) -> TagMatchError | None:
    """The error that a client hears of; `None` for a mistake of the service itself, of which only its log says more."""
    if isinstance(error, MemoryError):
        return TagMatchError("the service is out of memory; send less at a time")
    # Arrow's errors of data that it cannot read, which may be Python's own, without a number
    is_io = isinstance(error, OSError) and error.errno is None
    if is_io or isinstance(error, pa.ArrowException | UnicodeDecodeError):
        return InvalidValueError(f"the Arrow data cannot be read: {_line(error)}")
    return error if isinstance(error, TagMatchError) else None


def is_expected(error: BaseException) -> bool:
    """Whether this is no mistake of the service itself."""
    return _known(error) is not None


def error_text(error: BaseException) -> bytes:
    """An error as JSON: one line, and the name of the error, but of nothing that says how the service is made."""
    known = _known(error)
    name, line = ("TagMatchError", INTERNAL) if known is None else (name_of(known), _line(known))
    return json.dumps({"error": name, "message": line}).encode()


def status_of(error: BaseException) -> tuple[str, str, list[tuple[str, str | bytes]]]:
    """How a call ends with an error: the status of gRPC, its details, and headers that Flight's clients read."""
    known = _known(error)
    if known is None:
        code, word, line = "INTERNAL", "Internal", INTERNAL
    else:
        code, word = next((code, word) for kind, code, word in _STATUSES if isinstance(known, kind))
        line = _line(known)
    headers: list[tuple[str, str | bytes]] = [
        ("grpc-status-details-bin", error_text(error)),
        ("x-arrow-status", _IO_ERROR),
        ("x-arrow-status-detail-bin", word.encode()),
        ("x-arrow-status-message-bin", line.encode()),
    ]
    return code, f"{line}. Detail: {word}", headers


def name_of(error: BaseException) -> str:
    """The name of the nearest kind of error that clients know."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "TagMatchError")


def error_of_text(info: bytes) -> TagMatchError | None:
    """The error that a service has written as JSON; `None` if it is none."""
    try:
        found = json.loads(info)
        return _KINDS[found["error"]](str(found["message"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def error_of_flight(error: BaseException, url: str) -> TagMatchError:
    """The error that a service has raised, or what became of the connection to it."""
    if isinstance(error, TagMatchError):
        return error
    known = error_of_text(getattr(error, "extra_info", b"") or b"")
    if known is not None:
        return known
    line = _line(error)
    if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
        return AccessError(line)
    if isinstance(error, flight.FlightTimedOutError):
        return UnavailableError(f"the service at {url} has not answered in time")
    if isinstance(error, flight.FlightUnavailableError | flight.FlightCancelledError | flight.FlightInternalError):
        why = next((why for mark, why in _NO_CONNECTION.items() if mark in line), None)
        return UnavailableError(f"the service at {url} does not answer, or went away: {why or line}")
    if isinstance(error, TypeError | pa.ArrowTypeError):
        return InvalidTypeError(line)
    return TagMatchError(f"the service at {url}: {line}")


def _line(error: BaseException) -> str:
    """The message in one line, without what gRPC adds of its own."""
    text = str(error)
    for mark in (". gRPC client debug context:", ". Client context:", ". Detail:", " Detail: Python exception"):
        text = text.partition(mark)[0]
    return " ".join(text.split())[:_MOST] or type(error).__name__
