"""What the routes are, as OpenAPI 3.1 has it: made of their functions, whose options are those that are taken."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import NoneType
from typing import Any

from tagmatch.broker.answers import kinds_of
from tagmatch.broker.cloudevents import BATCH, STRUCTURED
from tagmatch.broker.http.bodies import NOTE, PROBLEM
from tagmatch.broker.http.streams import NAMES, Form
from tagmatch.model import VERSION

Object = dict[str, Any]

_KINDS: dict[type, Object] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list: {"type": "array", "items": {}},
    dict: {"type": "object"},
    NoneType: {"type": "null"},
}
_TEXTS: Object = {"type": "array", "items": {"type": "string"}}
#: Options whose type says less than they take
_NAMED: dict[str, Object] = {
    "tags": {**_TEXTS, "description": "The tags."},
    "attributes": {"type": "object", "description": "Values by name: booleans, numbers, texts, or lists of these."},
    "location": {"type": "array", "items": {}, "description": "[longitude, latitude], or a list of such places."},
    "columns": {**_TEXTS, "description": "Columns of data to return with the keys."},
    "only": {"type": "string", "description": "An expression about data: only keys that satisfy it are given."},
    "channel": {"type": "string", "description": "The channel of the message, which has its deadline."},
    "unique": {"type": "boolean", "description": "Give each key once."},
    "after": {"type": "string", "description": "The key, or the id of the event, to go on after."},
    "prefix": {"type": "string", "description": "How the keys begin, which must be strings."},
    "tag": {"type": "string", "description": "A tag that the subscriptions have."},
    "text": {"type": "string", "description": "A text that they have anywhere, in any case."},
}
_BINARY: Object = {"type": "string", "format": "binary"}
_PUBLISHED: Object = {"$ref": "#/components/schemas/Published"}
_MESSAGES: Object = {"anyOf": [_PUBLISHED, {"type": "array", "items": _PUBLISHED}]}
_SCHEMAS: Object = {
    "Published": {
        "type": "object",
        "properties": {
            **{name: _NAMED[name] for name in ("tags", "attributes", "location", "channel")},
            "id": {"type": "string", "description": "What notifications carry back."},
            "payload": {"description": "What they carry: a text, or JSON."},
            "expires_in": {"type": "number", "description": "Seconds."},
        },
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail", "kind"],
        "properties": {
            **{name: {"type": "string"} for name in ("type", "title", "detail", "kind")},
            "status": {"type": "integer"},
        },
    },
    "Alternative": {
        "type": "object",
        "properties": {
            "tags": _TEXTS,
            "where": {"type": ["string", "null"], "description": "Conditions, such as price < 10."},
            "area": {"type": ["string", "object", "null"], "description": "Such as circle(9.19, 45.46, 5000)."},
            "expires": {"type": ["string", "null"], "description": "A time with its zone, as RFC 3339 has it."},
        },
    },
    "Record": {
        "type": "object",
        "required": ["key", "alternatives", "data"],
        "properties": {
            "key": {"type": ["integer", "string"]},
            "alternatives": {"type": "array", "items": {"$ref": "#/components/schemas/Alternative"}},
            "data": {"type": "object", "description": "By column: [type, value]."},
        },
    },
    "Subscription": {
        "allOf": [{"$ref": "#/components/schemas/Alternative"}],
        "type": "object",
        "properties": {
            "data": {"type": "object", "description": "Values by column."},
            "alternatives": {"type": "array", "items": {"$ref": "#/components/schemas/Alternative"}},
        },
    },
    "Key": {"type": "object", "required": ["key"], "properties": {"key": {"type": ["integer", "string"]}}},
    "Move": {
        "type": "object",
        "required": ["client", "lon", "lat"],
        "properties": {
            "client": {"type": ["integer", "string"]},
            **{name: {"type": "number"} for name in ("lon", "lat")},
        },
    },
    "Message": {
        "type": "object",
        "properties": {
            **{name: _NAMED[name] for name in ("tags", "attributes", "location")},
            "id": {"type": ["integer", "string"], "description": "Comes back with the answer."},
        },
    },
}


#: What one row is
_ROWS = {
    "messages": "Message",
    "subscriptions": "Subscription",
    "sets": "Subscription",
    "keys": "Key",
    "moves": "Move",
}


def document(routes: Mapping[str, Mapping[str, Any]]) -> Object:
    """The description of routes by path and method."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tagmatch",
            "version": VERSION,
            "description": "Subscriptions, and which of them messages match.",
        },
        "paths": {
            path: {method.lower(): _operation(path, route) for method, route in methods.items()}
            for path, methods in routes.items()
        },
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "What is wrong, and what to do.",
                    "content": {PROBLEM.decode(): {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
    }


def _operation(path: str, route: Any) -> Object:
    in_body = route.has_body and not route.takes_any
    found: Object = {
        "summary": route.description,
        "parameters": [*_of_path(path), *([] if in_body else _of_query(route.perform)), *_of_headers(route)],
        "responses": {"200": _answer(route), "default": {"$ref": "#/components/responses/Problem"}},
        "security": [] if route.role is None else [{"token": []}],
    }
    if route.rows == "own":
        if route.has_body:
            content: Object = {"application/json": {"schema": _MESSAGES}, NAMES["arrow"].decode(): {"schema": _BINARY}}
            content |= {kind: {"schema": {"type": ["object", "array"]}} for kind in (STRUCTURED, BATCH)}
            found["requestBody"] = {"required": True, "content": content}
    elif route.rows is not None:
        rows = {"type": "array", "items": {"$ref": f"#/components/schemas/{_ROWS[route.rows]}"}}
        schemas: dict[Form, Object] = {
            "json": rows,
            "lines": {"type": "string"},
            "arrow": _BINARY,
        }
        content = {NAMES[form].decode(): {"schema": schema} for form, schema in schemas.items()}
        found["requestBody"] = {"required": True, "content": content}
    elif route.has_body:
        schema = _object_of(route.perform) if in_body else {"$ref": "#/components/schemas/Subscription"}
        found["requestBody"] = {"required": not in_body, "content": {"application/json": {"schema": schema}}}
    if "If-Match" in str(found["parameters"]):
        found["responses"]["304"] = {"description": "The client has it."}
    return found


def _answer(route: Any) -> Object:
    if route.answers:
        return {"description": "The answer.", "content": {each: {} for each in route.answers}}
    if route.rows == "messages":
        return {
            "description": "Answers, in order.",
            "headers": {NOTE.decode(): {"description": "What may be wrong with messages.", "schema": _KINDS[str]}},
            "content": {name.decode(): {} for form, name in NAMES.items() if form != "events"},
        }
    schema = (
        {"$ref": "#/components/schemas/Record"}
        if route.name == "get" and not _has(route, "after")
        else {"type": "object"}
    )
    return {"description": "The answer.", "content": {"application/json": {"schema": schema}}}


def _has(route: Any, option: str) -> bool:
    return option in kinds_of(route.perform)


def _of_path(path: str) -> list[Object]:
    if "{key}" not in path:
        return []
    return [{"name": "key", "in": "path", "required": True, "schema": {"type": "string"}, "description": "The key."}]


def _of_query(perform: Any) -> list[Object]:
    found = inspect.signature(perform).parameters
    return [
        {"name": name, "in": "query", "schema": _schema(name, kinds, found[name].default)}
        for name, kinds in kinds_of(perform).items()
    ]


def _of_headers(route: Any) -> list[Object]:
    names = ["Request-Timeout"]
    if route.role == "write":
        names.append("Idempotency-Key")
    if route.name in ("get", "put", "delete") and route.rows is None and not _has(route, "after"):
        names += ["If-None-Match"] if route.name == "get" else ["If-Match", "If-None-Match"]
    if _has(route, "after") and route.rows == "own":
        names.append("Last-Event-ID")
    return [{"name": name, "in": "header", "schema": {"type": "string"}} for name in names]


def _object_of(perform: Any) -> Object:
    found = inspect.signature(perform).parameters
    properties = {name: _schema(name, kinds, found[name].default) for name, kinds in kinds_of(perform).items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _schema(name: str, kinds: tuple[type, ...], default: object) -> Object:
    given = {} if default is None or default is inspect.Parameter.empty else {"default": default}
    if name in _NAMED:
        return {**_NAMED[name], **given}
    own = [_KINDS[kind] for kind in kinds if kind is not NoneType]
    return {**(own[0] if len(own) == 1 else {"anyOf": own}), **given}
