"""CloudEvents 1.0 as messages, and notifications as CloudEvents: one conversion for HTTP, MQTT, NATS and others.

An event in binary mode has its attributes in headers or properties: `ce-id`, `ce_id` or, in MQTT, `id`. One in
structured mode is a JSON object, with its data in it. Both say the same message: `type`, `source`, `subject`, `time`
and the extensions are its attributes. The extensions `tags`, `lon`, `lat` and `channel` have their own meaning. Data
that are a JSON object may have `tags`, `attributes` and `location`, too.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote

from tagmatch.files.json import read_json
from tagmatch.model.errors import InvalidTypeError, InvalidValueError

Event = dict[str, Any]

#: Types of content: of one event in structured mode, and of a list of these
STRUCTURED, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
#: The extension of a notification that says which keys matched: a JSON list, as extensions have no lists
MATCHED = "matchedkeys"
_NEEDED = ("id", "source", "specversion", "type")
_CONTEXT = (*_NEEDED, "subject", "time", "datacontenttype", "dataschema")
#: Attributes of events that are attributes of messages, as texts
_AS_ATTRIBUTES = ("type", "source", "subject", "time", "dataschema", "datacontenttype")
#: Extensions that are no attributes of messages, but what properties of the same name are
_WITH_MEANING = ("tag", "tags", "lon", "lat", "channel")
_NAME = re.compile(r"[a-z0-9]{1,64}\Z")
_JSON = re.compile(r"[\w.+-]+/(json|[\w.+-]+\+json)\s*(;|\Z)", re.IGNORECASE)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
_LEAST, _MOST = -(2**31), 2**31 - 1


def is_binary(names: Iterable[str]) -> bool:
    """Whether headers, or properties, are those of an event in binary mode."""
    return _prefix_in(names) is not None


def _prefix_in(names: Iterable[str]) -> str | None:
    lowered = {name.lower() for name in names}
    return next((prefix for prefix in ("ce-", "ce_", "") if f"{prefix}specversion" in lowered), None)


def event_in(properties: Sequence[tuple[str, str]], payload: bytes) -> Event:
    """The event of a message, in binary or structured mode, as a JSON object; an error if there is no event in it."""
    prefix = _prefix_in(name for name, _ in properties)
    if prefix is None:
        found = read_json(payload, "the event")
        if not isinstance(found, dict):
            raise InvalidTypeError(f"an event must be a JSON object, not {type(found).__name__}")
        return checked(found)
    found = {}
    for name, value in properties:
        lowered = name.lower()
        if lowered == "content-type":
            found["datacontenttype"] = value
        elif lowered.startswith(prefix) and _NAME.match(key := lowered[len(prefix) :]):
            if key in found and key != "datacontenttype":
                raise InvalidValueError(f"an event has attribute {key!r} twice")
            found[key] = _decoded_header(value) if prefix == "ce-" else value
    kind = found.get("datacontenttype", "")
    if payload:
        if _JSON.match(kind):
            found["data"] = read_json(payload, "data of the event")
        elif (text := _text_of(payload)) is not None and kind.lower().startswith("text/"):
            found["data"] = text
        else:
            found["data_base64"] = b64encode(payload).decode()
    return checked(found)


def _decoded_header(value: str) -> str:
    """A value as it was before it was written as a header: perhaps in quotes, and with `%`."""
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError:  # it was not written so
        return value


def _text_of(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def checked(event: Event) -> Event:
    """An event as it is, without attributes that are null; an error if it is not as version 1.0 has it."""
    found = {name: value for name, value in event.items() if value is not None or name == "data"}
    if lacking := [name for name in _NEEDED if name not in found]:
        raise InvalidValueError(f"an event needs attribute {lacking[0]!r}")
    if found["specversion"] != "1.0":
        raise InvalidValueError(f"an event must have specversion '1.0', not {str(found['specversion'])[:60]!r}")
    for name, value in found.items():
        if name in ("data", "data_base64"):
            continue
        what = f"attribute {name[:60]!r} of an event"
        if not _NAME.match(name):
            raise InvalidValueError(f"{what}: a name has lower-case letters of ASCII and digits only, 64 at most")
        if name in _CONTEXT and (not isinstance(value, str) or not value):
            raise InvalidTypeError(f"{what} must be a text that is not empty, not {str(value)[:60]!r}")
        if isinstance(value, str):
            if _CONTROLS.search(value):
                raise InvalidValueError(f"{what} has a control character")
        elif not isinstance(value, bool) and not (isinstance(value, int) and _LEAST <= value <= _MOST):
            raise InvalidTypeError(f"{what} must be a text, a bool or an integer of 32 bits, not {str(value)[:60]!r}")
    if "time" in found:
        _check_time(found["time"])
    if "data_base64" in found:
        if "data" in found:
            raise InvalidValueError("an event has data or data_base64, not both")
        _decoded(found["data_base64"])
    return found


def _check_time(text: str) -> None:
    try:
        is_whole = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        is_whole = False
    if not is_whole:
        raise InvalidValueError(f"time of an event must be as 2026-11-29T08:30:00Z, not {text[:60]!r}")


def _decoded(text: Any) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (ValueError, TypeError):
        raise InvalidValueError("data_base64 of an event is no base64") from None


def properties_in(event: Event) -> list[tuple[str, str]]:
    """Extensions as properties of a message: the same in both modes, as all have a form as text."""
    found = []
    for name, value in event.items():
        if name not in _CONTEXT and name not in ("data", "data_base64", MATCHED):
            text = value if isinstance(value, str) else str(value).lower()
            found.append((name if name in _WITH_MEANING else f"attribute:{name}", text))
    return found


def message_in(event: Event) -> dict[str, Any]:
    """What an event says besides its extensions: `tags`, `attributes` and perhaps `location`."""
    attributes = {name: event[name] for name in _AS_ATTRIBUTES if name in event}
    data = event.get("data")
    found: dict[str, Any] = {"attributes": attributes}
    if isinstance(data, dict):
        found |= {name: data[name] for name in ("tags", "location") if data.get(name) is not None}
        more = data.get("attributes") or {}
        if not isinstance(more, dict):
            raise InvalidTypeError("attributes in the data of an event must be an object")
        if both := sorted(more.keys() & attributes.keys()):
            raise InvalidValueError(f"{both[0]!r} is an attribute of the event and one in its data; rename the latter")
        attributes |= more
    return found


def json_of(value: Any, **form: Any) -> bytes:
    """A value as JSON; InvalidValueError for a number that is too large for a double, as JSON has no infinity."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **form).encode(errors="replace")
    except ValueError:
        raise InvalidValueError("a number is too large for a double; write it as a text") from None


def written(event: Event) -> bytes:
    """An event in structured mode."""
    return json_of(event, separators=(",", ":"))


def notification(payload: bytes | None, keys: Sequence[int | str], name: str, session: str) -> bytes:
    """A notification as an event in structured mode: the published event, and which keys matched.

    A payload that is no event becomes the data of a new one, whose id is `name` and whose source is the session; `name`
    must be the same if the notification comes again.
    """
    new = {"specversion": "1.0", "id": name, "source": f"/tagmatch/sessions/{quote(session, safe='')}"}
    new["type"] = "tagmatch.notification"
    matched = {MATCHED: json.dumps([*keys])}
    for event in _forms(payload, new) if payload else ():
        with suppress(InvalidValueError):
            return written({**event, **matched})
    return written({**new, **matched})


def _forms(payload: bytes, new: Event) -> Iterator[Event]:
    """The events that a payload may be: itself, or the data of a new one, as JSON, as a text or as bytes.

    One with a number that is too large cannot be written as the first two; any payload can be as one of the others.
    """
    with suppress(InvalidTypeError, InvalidValueError):
        found = read_json(payload, "the payload")
        if isinstance(found, dict) and "specversion" in found:
            with suppress(InvalidTypeError, InvalidValueError):
                yield checked(found)
        yield {**new, "datacontenttype": "application/json", "data": found}
    text = _text_of(payload)
    if text is not None:
        yield {**new, "datacontenttype": "text/plain", "data": text}
    yield {**new, "datacontenttype": "application/octet-stream", "data_base64": b64encode(payload).decode()}
