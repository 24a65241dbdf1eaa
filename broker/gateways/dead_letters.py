"""Dead letters: messages and notifications that a gateway gives up, each with the reason, at the end of a file.

A file takes also what the other broker refuses, and it is there when that one is not.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

_LOG = logging.getLogger("tagmatch.gateways")
#: Bytes of the file after which no letter is written to it, until an operator moves it away
MOST_BYTES = 1 << 30
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What is given up.

    Attributes
    ----------
    way : {"in", "out"}
        A message that came, or a notification that was to go.
    reason : str
    topic : str
        Where it came from, or was to go: a topic or a subject.
    payload : bytes
    id : bytes, optional
    properties : sequence of (str, str)
    """

    way: Literal["in", "out"]
    reason: str
    topic: str
    payload: bytes
    id: bytes | None = None
    properties: Sequence[tuple[str, str]] = field(default_factory=tuple)

    def line(self, gateway: str) -> bytes:
        r"""An object of JSON on a line; payload and id are bytes as base64.

        Examples
        --------
        >>> DeadLetter("out", "it is too large", "out/7", b"miaow").line("mqtt")[-41:]
        b'"topic": "out/7", "payload": "bWlhb3c="}\n'
        """
        found = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "gateway": gateway,
            "way": self.way,
            "reason": self.reason[:_LONGEST_REASON],
            "topic": self.topic,
            "payload": b64encode(self.payload).decode(),
        }
        if self.id is not None:
            found["id"] = b64encode(self.id).decode()
        if self.properties:
            found["properties"] = [*map(list, self.properties)]  # type: ignore[assignment]
        return json.dumps(found).encode() + b"\n"


class DeadLetters:
    """Where dead letters go; all of them are logged and counted. All methods may be called from many threads.

    Parameters
    ----------
    path : str, optional
        The file, which is made if it is not there, for its owner only.
    gateway : str
        Name of the gateway in it.
    """

    def __init__(self, path: str | None, gateway: str) -> None:
        self._path, self._gateway = path, gateway
        self._lock = threading.Lock()
        self._counts = {"dead_letters": 0, "dead_letters_unwritten": 0}

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Write letters, as one; where that fails, it is logged and counted, and nothing waits for it."""
        for letter in letters:
            what = "a message" if letter.way == "in" else "a notification"
            fields = {"gateway": self._gateway, "topic": letter.topic[:200], "reason": letter.reason[:_LONGEST_REASON]}
            _LOG.warning("%s is given up", what, extra={"fields": fields})
        with self._lock:
            self._counts["dead_letters"] += len(letters)
            try:
                is_written = self._path is not None and self._write(self._path, letters)
            except (OSError, ValueError) as error:
                is_written = False
                _LOG.error("dead letters are not written: %s", error)
            if not is_written:
                self._counts["dead_letters_unwritten"] += len(letters)

    def _write(self, path: str, letters: Sequence[DeadLetter]) -> bool:
        """Write letters behind those that are there; opened anew each time, so that it may be moved away."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            text = b"".join(letter.line(self._gateway) for letter in letters)
            before = os.fstat(file).st_size
            if before + len(text) > MOST_BYTES:
                raise OSError(f"{path} would have more than {MOST_BYTES:,} bytes; move it away")
            try:
                while text:
                    text = text[os.write(file, text) :]
                os.fdatasync(file)
            except OSError:
                os.ftruncate(file, before)  # a line that is cut short would spoil the next one
                raise
        finally:
            os.close(file)
        return True

    def stats(self) -> dict[str, int]:
        """Counts: `dead_letters`, and `dead_letters_unwritten` of them, as there is no file, or it takes no more."""
        with self._lock:
            return dict(self._counts)
