"""`DoAction`: what is neither a stream of messages nor rows; bodies and results are JSON objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tagmatch.broker.calls import Call
from tagmatch.broker.config import Role
from tagmatch.broker.wire import Options, area_of
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, UnavailableError
from tagmatch.model.filters.where import Where
from tagmatch.model.version import VERSION

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a client may ask for by name.

    Attributes
    ----------
    description : str
    role : str or None
        The least that is needed; `None`: not even a token.
    perform : callable
        `perform(call, body)` returns what is answered.
    """

    description: str
    role: Role | None
    perform: Callable[[Call, Body], Body]


@dataclass(frozen=True, slots=True)
class _Nothing(Options):
    """No options."""


@dataclass(frozen=True, slots=True)
class _Consolidate(Options):
    """As of `TagMatch.consolidate`."""

    full: bool = False


@dataclass(frozen=True, slots=True)
class _Contains(Options):
    """A set, with its conditions."""

    tags: list | None = None  # type: ignore[type-arg]
    where: list | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class _Explain(Options):
    """One message, as of `TagMatch.explain`."""

    tags: list | None = None  # type: ignore[type-arg]
    attributes: dict | None = None  # type: ignore[type-arg]
    location: list | None = None  # type: ignore[type-arg]
    within: dict | None = None  # type: ignore[type-arg]


@dataclass(frozen=True, slots=True)
class _EndSession(Options):
    """A session, by its name."""

    session: str = ""


def _health(_call: Call, _body: Body) -> Body:
    return {"status": "alive"}


def _ready(call: Call, _body: Body) -> Body:
    service = call.service
    if service.is_draining:
        raise UnavailableError("the service is not ready: it ends")
    gateways = service.subscribers.conditions
    if not service.is_ready:
        lacking = ", ".join(f"{name}: {condition}" for name, condition in gateways.items() if condition != "connected")
        raise UnavailableError(f"the service is not ready: a gateway that is required is missing ({lacking})")
    return {"status": "ready", "gateways": gateways}


def _info(call: Call, _body: Body) -> Body:
    service = call.service
    return {
        "version": VERSION,
        "key_type": "string" if service.has_string_keys else "integer",
        "plane": service.plane,
        "max_batch_rows": service.config.server.max_batch_rows,
        "max_message_bytes": service.config.server.max_message_bytes,
        "user": call.user.name,
        "role": call.user.role,
    }


def _stats(call: Call, body: Body) -> Body:
    _Nothing.of(body, "stats")
    return call.service.index.stats()


def _consolidate(call: Call, body: Body) -> Body:
    options, index = _Consolidate.of(body, "consolidate"), call.service.index
    changes = index.consolidate(full=options.full)
    return {"sets": len(index), "changes": changes._asdict()}


def _reload(call: Call, body: Body) -> Body:
    _Nothing.of(body, "reload")
    return {"reloaded": call.service.index.reload()}


def _save_positions(call: Call, body: Body) -> Body:
    _Nothing.of(body, "save_positions")
    call.service.index.save_positions()
    return {}


def _check(call: Call, body: Body) -> Body:
    _Nothing.of(body, "check")
    call.service.index.check()
    return {"sets": len(call.service.index)}


def _contains(call: Call, body: Body) -> Body:
    options = _Contains.of(body, "contains")
    where = options.where or []
    if not all(isinstance(each, str) for each in where):
        raise InvalidTypeError("contains: where must be a list of strings")
    return {"contains": [*(options.tags or []), *map(Where, where)] in call.service.index}


def _explain(call: Call, body: Body) -> Body:
    options = _Explain.of(body, "explain")
    within: Any = area_of(options.within, "explain: within")
    location: Any = None if options.location is None else tuple(options.location)
    found = call.service.index.explain(options.tags or [], options.attributes, location=location, within=within)
    return {
        "sets": [
            {
                "tags": [tag for tag in stored if not isinstance(tag, Where)],
                "where": [[str(tag), tag.path] for tag in stored if isinstance(tag, Where)],
                "keys": list(keys),
            }
            for stored, keys in found
        ]
    }


def _sessions(call: Call, body: Body) -> Body:
    _Nothing.of(body, "sessions")
    return {"sessions": call.service.subscribers.sessions.listed(_whose(call))}


def _end_session(call: Call, body: Body) -> Body:
    options = _EndSession.of(body, "end_session")
    return {"ended": call.service.subscribers.sessions.end(options.session, _whose(call))}


def _whose(call: Call) -> str | None:
    """The user whose sessions a call is about: an admin's is about those of all."""
    return None if call.user.may("admin") else call.user.name


def _calls(call: Call, body: Body) -> Body:
    _Nothing.of(body, "calls")
    return {"users": call.service.limits.by_user()}


def _drain(call: Call, body: Body) -> Body:
    _Nothing.of(body, "drain")
    call.service.drain()
    return {"status": "draining"}


ACTIONS: dict[str, Action] = {
    "health": Action("Whether the service is alive; needs no token, and says nothing else.", None, _health),
    "ready": Action("Whether the service takes calls, and which gateways are connected.", "read", _ready),
    "info": Action("Version, type of keys, limits, and who the caller is.", "read", _info),
    "stats": Action("Figures of the index, as `TagMatch.stats` gives them.", "read", _stats),
    "contains": Action("Whether exactly a set is stored: `tags`, and `where`, a list.", "read", _contains),
    "explain": Action("Which sets a message matches: `tags`, `attributes`, `location`, `within`.", "read", _explain),
    "sessions": Action("One's own sessions of notifications; for an admin, those of all users.", "read", _sessions),
    "end_session": Action("End one of these, with all that waits in it: `session`, its name.", "read", _end_session),
    "consolidate": Action(
        "Make staged changes take effect, counted; `full`: lay all sets out anew.", "write", _consolidate
    ),
    "save_positions": Action("Save where clients are.", "write", _save_positions),
    "reload": Action("Take over a newer snapshot that another program has saved.", "write", _reload),
    "check": Action("Verify every invariant of the index.", "admin", _check),
    "calls": Action("Calls under way and bytes that wait, of each user.", "admin", _calls),
    "drain": Action("Take no more calls, end streams, and then end the service.", "admin", _drain),
}


def action(name: str) -> Action:
    """The action of this name; InvalidValueError."""
    if name not in ACTIONS:
        raise InvalidValueError(f"there is no action {name[:60]!r}; there is {', '.join(ACTIONS)}")
    return ACTIONS[name]
