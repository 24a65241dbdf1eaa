"""Structured logs: a line of JSON for each event, or of text."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from datetime import UTC, datetime

from tagmatch.broker.config import LogOptions

#: What modules of the service log to; `extra={"fields": {...}}` adds fields
LOG = logging.getLogger("tagmatch.broker")


#: What ends a line somewhere, or moves the cursor
_ODD = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class JsonLines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, message, fields, and the traceback of an error."""
        found = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


class TextLines(logging.Formatter):
    """A record as one line for people, with the lines of a traceback, set in, behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, message and fields."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        fields = " ".join(f"{name}={value!r}" for name, value in getattr(record, "fields", {}).items())
        line = _shown(f"{time} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip())
        if not record.exc_info:
            return line
        return "\n    ".join([line, *map(_shown, self.formatException(record.exc_info).split("\n"))])


def _shown(text: str) -> str:
    """A text on one line, of which nothing can look like another line."""
    return _ODD.sub(lambda found: ascii(found[0])[1:-1], text)


def set_up_logs(options: LogOptions) -> None:
    """Write what the service logs to standard error, with what libraries and threads that end by an error say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if options.format == "json" else TextLines())
    root, level = logging.getLogger(), logging.getLevelNamesMapping()[options.level.upper()]
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("tagmatch").setLevel(level)
    logging.captureWarnings(True)
    threading.excepthook = _log_end_of_thread


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    error = ended.exc_value
    if error is not None and not isinstance(error, SystemExit):
        LOG.error("a thread has ended", exc_info=error)
