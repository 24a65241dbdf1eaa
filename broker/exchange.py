"""`DoExchange`: a stream of messages in, a stream of their keys out.

A thread reads what comes; the thread of the call takes all that has come meanwhile, matches it by one call, and writes
the answers, batch for batch. A batch that cannot be used ends the stream before the next one is read, with an error.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow as pa

from tagmatch.broker.calls import Call
from tagmatch.broker.errors import error_text, name_of
from tagmatch.broker.gathering import Gathering
from tagmatch.broker.messages import Messages, check_messages, check_schema, id_type, messages_of, together
from tagmatch.broker.wire import MatchOptions, write_json
from tagmatch.model.errors import DeadlineMissed, Overloaded, TagMatchError
from tagmatch.queries import ID

KEYS = "keys"
#: The metadata, without data, that asks a client to end a stream
DRAINING = write_json({"draining": True})
# Seconds between looks whether the service ends
_LOOK_S = 0.2


def exchange(call: Call, options: MatchOptions, reader: Any, writer: Any) -> None:
    """Answer a stream of messages.

    Parameters
    ----------
    call : Call
    options : MatchOptions
    reader, writer : MetadataRecordBatchReader, MetadataRecordBatchWriter
    """
    _Exchange(call, options, reader, writer).run()


class _Exchange:
    def __init__(self, call: Call, options: MatchOptions, reader: Any, writer: Any) -> None:
        self._call, self._options, self._reader, self._writer = call, options, reader, writer
        server = call.service.config.server
        self._most_rows = server.max_batch_rows
        self._gathering = Gathering(server.queue_rows, 2 * server.max_message_bytes)

    def run(self) -> None:
        """Answer until the client ends the stream."""
        schema = self._reader.schema
        check_schema(schema)
        key_type = pa.large_string() if self._call.service.has_string_keys else pa.uint64()
        fields = [(KEYS, pa.list_(key_type))]
        ids = id_type(schema, self._options)
        self._schema = pa.schema([*([] if ids is None else [(ID, ids)]), *fields])
        thread = threading.Thread(target=self._read, name="tagmatch-exchange", daemon=True)
        thread.start()
        try:
            self._writer.begin(self._schema)
            self._answer_all()
        except BaseException as error:
            # Reading cannot be broken off: the client is asked to end the stream, and gets the error then
            self._leave()
            if not self._gathering.has_ended:
                self._tell(error_text(error))
            raise
        finally:
            thread.join()

    def _read(self) -> None:
        """Read batches until there are no more; the body of a thread."""
        service, error, row = self._call.service, None, 0
        try:
            while (batch := self._next_batch()) is not None:
                arrived = time.perf_counter()
                service.limits.check_batch(batch)
                messages = messages_of(batch, self._options, arrived)
                check_messages(messages.queries, row, plane=service.plane)
                row += messages.rows
                self._keep_to_rate(messages.rows)
                self._call.require()
                service.metrics.messages.inc(messages.rows)
                service.metrics.in_flight.inc(messages.rows)
                service.metrics.queued.inc(messages.rows)
                if not self._gathering.put(messages):
                    service.metrics.in_flight.dec(messages.rows)
                    service.metrics.queued.dec(messages.rows)
        except StopIteration:
            pass
        except BaseException as found:  # the thread of the call raises it
            error = found
        self._gathering.end(error)

    def _next_batch(self) -> pa.RecordBatch:
        """The next batch that has data."""
        while True:
            chunk = self._reader.read_chunk()
            if chunk.data is not None:
                return chunk.data

    def _keep_to_rate(self, rows: int) -> None:
        seconds = self._call.service.limits.wait_for(self._call.user.name, rows)
        if seconds > 0:
            self._call.service.metrics.throttled.inc(seconds)
            time.sleep(seconds)

    def _answer_all(self) -> None:
        asked = False
        while True:
            some = self._gathering.take(self._most_rows, _LOOK_S)
            if some:
                self._answer(some)
            elif self._gathering.has_ended:
                if not (some := self._gathering.take(self._most_rows)):
                    return
                self._answer(some)
            elif self._call.service.is_draining and not asked:
                asked = True
                self._tell(DRAINING)

    def _answer(self, some: list[Messages]) -> None:
        metrics, rows = self._call.service.metrics, sum(each.rows for each in some)
        metrics.queued.dec(rows)
        index, options = self._call.service.index, self._options
        try:
            if options.channel is None:
                keys = index.match_many(together(some), unique=options.unique)
            else:
                waited = time.perf_counter() - some[0].arrived
                keys = index.match_many(together(some), unique=options.unique, channel=options.channel, waited=waited)
            if self._options.coalesce and len(some) > 1:
                ids = None if some[0].ids is None else pa.concat_arrays([each.ids for each in some])
                self._write(ids, keys)
            else:
                first = 0
                for each in some:
                    self._write(each.ids, keys.slice(first, each.rows))
                    first += each.rows
        except (DeadlineMissed, Overloaded) as error:
            if options.channel is None:
                raise
            for each in some:
                self._write_error(each, error)
            return
        finally:
            metrics.in_flight.dec(rows)
        metrics.answers.inc(rows)
        metrics.keys.inc(len(keys.values))
        now = time.perf_counter()
        for each in some if len(some) <= 16 else (some[0], some[-1]):
            metrics.latency.observe(now - each.arrived)

    def _write(self, ids: pa.Array | None, keys: pa.ListArray) -> None:
        columns = [keys] if ids is None else [ids, keys]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _write_error(self, messages: Messages, error: TagMatchError) -> None:
        """Say of messages that they have no answers, and why."""
        keys = pa.nulls(messages.rows, self._schema.field(KEYS).type)
        columns = [keys] if messages.ids is None else [messages.ids, keys]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._writer.write_with_metadata(batch, pa.py_buffer(error_text(error)))
        self._call.service.metrics.errors.labels(name_of(error)).inc()

    def _tell(self, text: bytes) -> None:
        try:
            self._writer.write_metadata(pa.py_buffer(text))
        except Exception:  # the client is gone, which reading finds, too
            self._leave()

    def _leave(self) -> None:
        left, metrics = self._gathering.close(), self._call.service.metrics
        metrics.in_flight.dec(left)
        metrics.queued.dec(left)
