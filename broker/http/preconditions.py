"""What a request asks for besides its answer: a state that a subscription must have, to be done once, and in time."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

from tagmatch.broker.http.bodies import Answer, RefusedError
from tagmatch.broker.wire import record_to_json, write_json
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.records import Record

# The most seconds that a client may ask for, bytes of a key, and answers that are kept, of a user and of all
_MOST_SECONDS, _LONGEST_KEY, _KEPT_OF_USER, _KEPT = 3600.0, 255, 256, 4096


def tag_of(record: Record[Any]) -> str:
    """The `ETag` of a record: what it says, in short."""
    return f'"{hashlib.sha256(write_json(record_to_json(record))).hexdigest()[:32]}"'


def _tags_in(header: str) -> set[str]:
    return {each.strip().removeprefix("W/") for each in header.split(",")}


def condition_of(if_match: str, if_none_match: str) -> Callable[[Record[Any] | None], None] | None:
    """What raises an error of status 412 unless the record of a key is as these headers say; `None` without them."""
    if not if_match and not if_none_match:
        return None
    if if_none_match and if_none_match.strip() != "*":
        raise InvalidValueError("If-None-Match must be * for a change: only if the key has no subscription")

    def check(record: Record[Any] | None) -> None:
        if if_none_match and record is not None:
            raise RefusedError(412, "the key has a subscription already", [(b"etag", tag_of(record).encode())])
        if not if_match:
            return
        if record is None:
            raise RefusedError(412, "the key has no subscription any more")
        if if_match.strip() != "*" and (own := tag_of(record)) not in _tags_in(if_match):
            raise RefusedError(412, "the subscription has changed; get it again", [(b"etag", own.encode())])

    return check


def is_known(record: Record[Any], if_none_match: str) -> bool:
    """Whether a client that says this has the record."""
    return bool(if_none_match) and (if_none_match.strip() == "*" or tag_of(record) in _tags_in(if_none_match))


def seconds_in(header: str) -> float | None:
    """The seconds that the header `Request-Timeout` gives a call; `None` without it."""
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _MOST_SECONDS:
        raise InvalidValueError(
            f"Request-Timeout must be seconds, more than 0 and at most {_MOST_SECONDS:g}, not {header[:60]!r}"
        )
    return seconds


def digest_of(*parts: bytes) -> bytes:
    """What tells requests apart: their method, their URL, and their body."""
    return hashlib.sha256(b"\0".join(parts)).digest()


class Repeats:
    """Answers to changes by their `Idempotency-Key`, so that a change that is sent again is not made again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_users: defaultdict[str, OrderedDict[str, tuple[bytes, Answer | None]]] = defaultdict(OrderedDict)
        self._count = 0

    def begin(self, user: str, key: str, asked: bytes) -> Answer | None:
        """The answer to the same request before; `None`: it is the first, and `end` or `forget` has to follow."""
        if len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise InvalidValueError(f"Idempotency-Key must be at most {_LONGEST_KEY} printable characters of ASCII")
        with self._lock:
            own = self._of_users[user]
            if key in own:
                before, answer = own[key]
                if before != asked:
                    raise RefusedError(422, "this Idempotency-Key was given for another request; choose a new one")
                if answer is None:
                    raise RefusedError(409, "a request with this Idempotency-Key is under way; ask again later")
                return answer._replace(headers=[*answer.headers, (b"idempotent-replayed", b"true")])
            own[key] = asked, None
            self._count += 1
            while len(own) > _KEPT_OF_USER or self._count > _KEPT:
                oldest = own if len(own) > _KEPT_OF_USER else max(self._of_users.values(), key=len)
                oldest.popitem(last=False)
                self._count -= 1
            return None

    def end(self, user: str, key: str, asked: bytes, answer: Answer) -> None:
        """Keep the answer."""
        with self._lock:
            if key in self._of_users[user]:
                self._of_users[user][key] = asked, answer

    def forget(self, user: str, key: str) -> None:
        """It has failed, and may be tried again."""
        with self._lock:
            if self._of_users[user].pop(key, None) is not None:
                self._count -= 1
