"""Requests that come through a gateway: to add a subscription, or to remove one."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, Protocol

from tagmatch.files.json_values import read_json
from tagmatch.model.change_counts import ChangeCounts
from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.names import near_match
from tagmatch.model.options import Missing

_LOG = logging.getLogger("tagmatch.gateways")
_ACTIONS = ("subscribe", "unsubscribe")
_FIELDS = frozenset(("action", "key", "tags", "where", "missing"))
#: Bytes of a request
_LONGEST = 1 << 20


class Changeable(Protocol):
    """What requests change: a `TagMatch`."""

    def add_set(self, tags: Any, key: Any, *, where: str | None = None) -> int:
        """Stage a subscription; how many changes that are."""
        ...

    def remove_set(self, tags: Any, key: Any, *, where: str | None = None, missing: Missing = "ignore") -> int:
        """Stage that it goes; how many changes that are."""
        ...

    def consolidate(self) -> ChangeCounts:
        """Put in effect what is staged."""
        ...


class Requests:
    """Carries requests out, and consolidates what they change.

    Parameters
    ----------
    index : TagMatch
    write : bool
        Whether requests may change it.
    interval : float
        Seconds between two looks whether something has changed.

    Examples
    --------
    >>> from tagmatch import TagMatch
    >>> requests = Requests(TagMatch(), False, 5.0)
    >>> requests.answer(b'{"action": "subscribe", "tags": ["fr"], "key": 7}')
    b'{"ok": false, "error": "this gateway carries out no requests: write = true in its options would let it"}'
    """

    def __init__(self, index: Changeable, write: bool, interval: float) -> None:
        self._index, self._write, self._interval = index, write, interval
        self._changed, self._ending = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._counts = {"requests": 0, "requests_refused": 0, "consolidations": 0, "consolidations_failed": 0}
        self._thread = threading.Thread(target=self._run, name="tagmatch-consolidate", daemon=True)

    def start(self) -> None:
        """Begin to consolidate."""
        if self._write:
            self._thread.start()

    def stop(self) -> None:
        """Consolidate what has changed, and end."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def answer(self, request: bytes) -> bytes:
        """Carry a request out; the answer, a JSON object: `ok`, and how many changes are `staged` or the `error`."""
        self._count("requests")
        try:
            staged = self._carry_out(request)
        except TagMatchError as error:
            self._count("requests_refused")
            return _error(error)
        except Exception as error:  # unforeseen, and an error of this request alone
            _LOG.exception("a request has failed")
            self._count("requests_refused")
            return _error(f"the request has failed: {type(error).__name__}; the log of the service says why")
        return json.dumps({"ok": True, "staged": staged}).encode()

    def _carry_out(self, request: bytes) -> int:
        if not self._write:
            raise InvalidValueError("this gateway carries out no requests: write = true in its options would let it")
        found = _read(request)
        tags, key, where = found["tags"], found["key"], found.get("where")
        if found["action"] == "subscribe":
            staged = self._index.add_set(tags, key, where=where)
        else:
            staged = self._index.remove_set(tags, key, where=where, missing=found.get("missing", "ignore"))
        self._changed.set()
        return staged

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self._consolidate()
        self._consolidate()

    def _consolidate(self) -> None:
        if not self._changed.is_set():
            return
        self._changed.clear()
        try:
            self._index.consolidate()
            self._count("consolidations")
        except Exception as error:  # changes stay staged, and are tried again
            self._changed.set()
            self._count("consolidations_failed")
            _LOG.error("consolidation failed: %s", error)

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def stats(self) -> dict[str, int]:
        """Counts: `requests`, `requests_refused` of them, `consolidations`, `consolidations_failed`."""
        with self._lock:
            return dict(self._counts)


def _error(why: object) -> bytes:
    return json.dumps({"ok": False, "error": str(why)}).encode()


def _read(request: bytes) -> dict[str, Any]:
    if len(request) > _LONGEST:
        raise InvalidValueError(f"a request must have at most {_LONGEST} bytes, not {len(request)}")
    found = read_json(request, "a request")
    if not isinstance(found, dict):
        raise InvalidTypeError(f"a request must be a JSON object, not {type(found).__name__}")
    if unknown := sorted(found.keys() - _FIELDS):
        near = near_match(unknown[0][:60], sorted(_FIELDS))
        raise InvalidValueError(f"a request has no field {unknown[0][:60]!r}{near}")
    if found.get("action") not in _ACTIONS:
        raise InvalidValueError(f"action must be one of {_ACTIONS}, not {str(found.get('action'))[:60]!r}")
    if "missing" in found and found["action"] == "subscribe":
        raise InvalidValueError("'missing' is for requests to unsubscribe")
    if missing := sorted({"key", "tags"} - found.keys()):
        raise InvalidValueError(f"a request needs {missing[0]!r}")
    return found
