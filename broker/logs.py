"""Structured logs: a line of JSON for each event, or of text."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from tagmatch.broker.config import LogOptions

#: What all modules of the service log to; `extra={"fields": {...}}` adds fields
LOG = logging.getLogger("tagmatch.broker")


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
    """A record as one line for people, with a traceback behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write time, level, message and fields."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds")
        fields = " ".join(f"{name}={value!r}" for name, value in getattr(record, "fields", {}).items())
        line = f"{time} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logs(options: LogOptions) -> None:
    """Write what the service logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if options.format == "json" else TextLines())
    LOG.handlers[:] = [handler]
    LOG.setLevel(options.level.upper())
    LOG.propagate = False
