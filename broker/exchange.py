"""`DoExchange`: a stream of messages in, a stream of their keys out.

A thread reads what comes; the thread of the call takes all that has come meanwhile, matches it by one call, and writes
the answers, batch for batch. A batch that cannot be used ends the stream before the next one is read, with an error.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

import pyarrow as pa

from tagmatch.broker.access import Call
from tagmatch.broker.flight import Incoming, Outgoing, told
from tagmatch.broker.messages import Gathering, Messages, check_messages, check_schema, id_type, messages_of, together
from tagmatch.broker.wire import MatchOptions, error_text, name_of, write_json
from tagmatch.messages import ID
from tagmatch.model.errors import DeadlineMissed, Overloaded, TagMatchError

KEYS = "keys"
#: The metadata, without data, that asks a client to end a stream
DRAINING = write_json({"draining": True})
# Seconds between looks whether the service ends
_LOOK_S = 0.2


def exchange(call: Call, options: MatchOptions, incoming: Incoming) -> Generator[bytes]:
    """Answer a stream of messages; gives the messages of Flight to send."""
    return _Exchange(call, options, incoming).run()


class _Exchange:
    def __init__(self, call: Call, options: MatchOptions, incoming: Incoming) -> None:
        self._call, self._options, self._incoming = call, options, incoming
        server = call.service.config.server
        self._most_rows = server.max_batch_rows
        self._gathering = Gathering(server.queue_rows, 2 * server.max_message_bytes)

    def run(self) -> Generator[bytes]:
        """Answer until the client ends the stream."""
        schema = self._incoming.schema
        check_schema(schema)
        key_type = pa.large_string() if self._call.service.has_string_keys else pa.uint64()
        fields = [(KEYS, pa.list_(key_type))]
        ids = id_type(schema, self._options)
        self._schema = pa.schema([*([] if ids is None else [(ID, ids)]), *fields])
        self._outgoing = Outgoing(self._schema)
        self._call.rpc.begin(self._read)
        try:
            yield self._outgoing.begin()
            yield from self._answer_all()
        except Exception as error:
            if not self._gathering.has_ended:  # a client that still writes reads it first
                yield told(error_text(error))
            raise
        finally:
            self._leave()

    def _read(self) -> None:
        """Read batches until there are no more, in another thread."""
        service, error, row = self._call.service, None, 0
        try:
            for batch in self._incoming:
                arrived = time.perf_counter()
                messages = messages_of(batch, self._options, arrived)
                check_messages(messages.queries, row, plane=service.plane)
                row += messages.rows
                self._call.keep_to_rate(messages.rows)
                self._call.require()
                self._call.memory.wait_for(messages.nbytes)
                service.metrics.messages.inc(messages.rows)
                service.metrics.in_flight.inc(messages.rows)
                service.metrics.queued.inc(messages.rows)
                if not self._gathering.put(messages):
                    service.metrics.in_flight.dec(messages.rows)
                    service.metrics.queued.dec(messages.rows)
        except BaseException as found:  # the thread of the call raises it
            error = found
        self._gathering.end(error)

    def _answer_all(self) -> Iterator[bytes]:
        asked = False
        while True:
            self._call.require()
            some = self._gathering.take(self._most_rows, _LOOK_S)
            if some:
                yield from self._answer(some)
            elif self._gathering.has_ended:
                if not (some := self._gathering.take(self._most_rows)):
                    return
                yield from self._answer(some)
            elif self._call.service.is_draining and not asked:
                asked = True
                yield told(DRAINING)

    def _answer(self, some: list[Messages]) -> Iterator[bytes]:
        metrics, rows = self._call.service.metrics, sum(each.rows for each in some)
        metrics.queued.dec(rows)
        index, options = self._call.service.index, self._options
        try:
            if options.channel is None:
                keys = index.match_many(together(some), unique=options.unique)
            else:
                waited = time.perf_counter() - some[0].arrived
                keys = index.match_many(together(some), unique=options.unique, channel=options.channel, waited=waited)
            self._call.memory.give_back(sum(each.nbytes for each in some))
            if self._options.coalesce and len(some) > 1:
                ids = None if some[0].ids is None else pa.concat_arrays([each.ids for each in some])
                yield from self._batch(ids, keys)
            else:
                first = 0
                for each in some:
                    yield from self._batch(each.ids, keys.slice(first, each.rows))
                    first += each.rows
        except (DeadlineMissed, Overloaded) as error:
            if options.channel is None:
                raise
            for each in some:
                self._call.memory.give_back(each.nbytes)
                yield from self._refusal(each, error)
            return
        finally:
            metrics.in_flight.dec(rows)
        metrics.answers.inc(rows)
        metrics.keys.inc(len(keys.values))
        now = time.perf_counter()
        for each in some if len(some) <= 16 else (some[0], some[-1]):
            metrics.latency.observe(now - each.arrived)

    def _batch(self, ids: pa.Array | None, keys: pa.ListArray) -> Iterator[bytes]:
        columns = [keys] if ids is None else [ids, keys]
        return self._outgoing.batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _refusal(self, messages: Messages, error: TagMatchError) -> Iterator[bytes]:
        """Say of messages that they have no answers, and why."""
        keys = pa.nulls(messages.rows, self._schema.field(KEYS).type)
        columns = [keys] if messages.ids is None else [messages.ids, keys]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._call.service.metrics.errors.labels(name_of(error)).inc()
        return self._outgoing.batch(batch, error_text(error))

    def _leave(self) -> None:
        left, metrics = self._gathering.close(), self._call.service.metrics
        metrics.in_flight.dec(left)
        metrics.queued.dec(left)
