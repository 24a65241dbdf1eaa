"""Spans of OpenTelemetry, one for each call, where the extra `trace` is installed; else nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tagmatch.model.errors import TagMatchError

Span = Callable[[str, dict[str, str]], AbstractContextManager[Any]]


def no_span(_name: str, _attributes: dict[str, str]) -> AbstractContextManager[Any]:
    """Do nothing."""
    return contextlib.nullcontext()


def spans(*, to_console: bool) -> Span:
    """What begins a span with a name and attributes.

    Where a program has set up a provider of its own, as `opentelemetry-instrument` does, spans go there.

    Parameters
    ----------
    to_console : bool
        Write spans to standard error, as JSON.

    Raises
    ------
    TagMatchError
        That is asked for, and OpenTelemetry is not there.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        if to_console:
            raise TagMatchError(
                "[log] traces needs OpenTelemetry; install it with: pip install 'tagmatch[trace]'"
            ) from None
        return no_span
    if to_console:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))
        tracer = provider.get_tracer("tagmatch")
    else:
        tracer = trace.get_tracer("tagmatch")

    def span(name: str, attributes: dict[str, str]) -> AbstractContextManager[Any]:
        return tracer.start_as_current_span(name, attributes=attributes)

    return span
