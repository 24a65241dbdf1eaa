"""Many queries over one stream: batches go out while answers come in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from tagmatch.broker.connection import MessageStream
from tagmatch.model.errors import ResultTooLargeError, TagMatchError, UnavailableError


def match_stream(
    open_stream: Callable[[], MessageStream], batches: Sequence[pa.RecordBatch], kind: pa.DataType
) -> pa.ListArray:
    """The keys of all rows, in order.

    Raises
    ------
    ResultTooLargeError
        They are too many for one Arrow array.
    TagMatchError
        What the service has raised, or `UnavailableError`.
    """
    rows = sum(map(len, batches))
    if not rows:
        return pa.array([], kind)
    stream = open_stream()
    try:
        if len(batches) == 1:
            stream.write(batches[0])
            stream.done_writing()
            found = _answers(stream, rows)
        else:
            # What is written waits until it is read, and so must go on by itself
            writer = threading.Thread(target=_write, args=[stream, batches], name="tagmatch-write", daemon=True)
            writer.start()
            try:
                found = _answers(stream, rows)
            finally:
                writer.join()
    finally:
        stream.close()
    if sum(len(keys.values) for keys in found) >= 2**31:
        raise ResultTooLargeError(f"{rows} queries have more keys than one Arrow list array can hold; ask with fewer")
    return pa.concat_arrays(found) if len(found) > 1 else found[0]


def _write(stream: MessageStream, batches: Sequence[pa.RecordBatch]) -> None:
    try:
        for batch in batches:
            stream.write(batch)
        stream.done_writing()
    except TagMatchError:
        pass  # who reads gets it, too


def _answers(stream: MessageStream, rows: int) -> list[pa.ListArray]:
    found, count = [], 0
    while count < rows:
        batch = stream.read()
        if batch is None:
            if stream.is_draining and not stream.was_told:
                stream.was_told = True  # all that is sent will still be answered
                continue
            raise UnavailableError(f"the service ended with {rows - count} of {rows} queries not answered; ask again")
        if stream.refused is not None:
            raise stream.refused
        found.append(batch.column("keys"))
        count += len(batch)
    return found
