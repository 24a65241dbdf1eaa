"""Messages of a stream: batches of the wire as what `TagMatch.match_many` takes, checked as they come.

What one thread reads and another takes together: a queue with a bound, in rows and in bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from tagmatch.broker.wire import MAX_JSON, MatchOptions
from tagmatch.files.columns import ATTRIBUTE_TAGS, attribute_lists, with_attributes
from tagmatch.files.json import read_json
from tagmatch.messages import ATTRIBUTES, ID, TAGS, queries_in
from tagmatch.model.columns import repeated, tag_lists
from tagmatch.model.errors import InvalidTypeError, InvalidValueError
from tagmatch.model.extensions import without_extensions

#: Columns of a stream, with the fields of structs: each is some work for each batch
MAX_FIELDS = 4_096

# Batches of fewer rows on average are put together, as each is some work of its own
_FEW_ROWS = 256


class Messages(NamedTuple):
    """Messages of one batch."""

    queries: pa.RecordBatch  # As `TagMatch.match_many` takes them
    ids: pa.Array | None  # What their sender calls them
    arrived: float  # When they came, in seconds of `time.perf_counter`
    nbytes: int  # What they have in memory

    @property
    def rows(self) -> int:
        """How many they are."""
        return int(self.queries.num_rows)


def id_type(schema: pa.Schema, options: MatchOptions) -> pa.DataType | None:
    """The type of the ids of a stream; `None` if there are none."""
    place = -1 if options.plain else schema.get_field_index(ID)
    return schema.types[place] if place >= 0 else None


def check_schema(schema: pa.Schema) -> None:
    """See that a stream has columns of messages."""
    if not schema.names:
        raise InvalidValueError("messages need a column 'tags', or one for each attribute")
    if _fields_in(schema) > MAX_FIELDS:
        raise InvalidValueError(
            f"a stream must have at most {MAX_FIELDS:,} columns, fields of structs among them; leave out attributes "
            "that no subscription asks for, or give those that differ from message to message as a map"
        )
    if twice := repeated(schema.names):
        raise InvalidValueError(f"there must be one column {twice[0][:60]!r}, not {twice[1]}")


def _fields_in(fields: Iterable[pa.Field]) -> int:
    """How many fields there are, with those within them; hardly more than `MAX_FIELDS` are counted."""
    count, left = 0, deque(fields)
    while left and count <= MAX_FIELDS:
        kind = left.popleft().type
        count += 1
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        if pa.types.is_dictionary(kind):
            left.append(pa.field("", kind.value_type))
        left.extend(kind.field(number) for number in range(min(kind.num_fields, MAX_FIELDS)))
    return count


def messages_of(batch: pa.RecordBatch, options: MatchOptions, arrived: float) -> Messages:
    """The messages of a batch whose Arrow data is sound."""
    batch = without_extensions(batch)
    names = batch.schema.names
    ids = batch.column(ID) if ID in names and not options.plain else None
    queries = batch.drop_columns([ID]) if ids is not None else batch
    if ATTRIBUTES in names:
        queries = _with_attributes(queries)
    return Messages(queries, ids, arrived, queries.nbytes + (0 if ids is None else ids.nbytes))


def _with_attributes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose column `attributes`, if that has JSON, has become tags that stand for them."""
    given = batch.column(ATTRIBUTES)
    if not (pa.types.is_string(given.type) or pa.types.is_large_string(given.type)):
        return batch
    rest = batch.drop_columns([ATTRIBUTES])
    if TAGS not in rest.schema.names:
        no_tags = pa.array([[]] * len(rest), pa.list_(pa.string()))
        rest = rest.append_column(TAGS, no_tags)
    tags = with_attributes(rest.column(TAGS), {"read": _read(given)})
    return rest.set_column(rest.schema.get_field_index(TAGS), TAGS, tags)


def _read(texts: pa.Array) -> pa.Array:
    """Attributes as the tags that stand for them, of JSON objects."""
    found: list[dict[str, Any] | None] = []
    # As bytes, since Arrow does not see to it that strings are UTF-8
    wide = pa.large_binary() if pa.types.is_large_string(texts.type) else pa.binary()
    for row, text in enumerate(texts.cast(wide).to_pylist()):
        what = f"column 'attributes': row {row}"
        if text is not None and len(text) > MAX_JSON:
            raise InvalidValueError(
                f"{what} must have at most {MAX_JSON:,} bytes, not {len(text):,}; give attributes as a map"
            )
        value = None if text is None else read_json(text, what)
        if value is not None and not isinstance(value, dict):
            raise InvalidValueError(f"{what} must be a JSON object")
        found.append(value)
    lists = attribute_lists(found)
    assert lists.type == ATTRIBUTE_TAGS
    return lists


def check_messages(queries: pa.RecordBatch, first_row: int, *, plane: bool) -> None:
    """See all that `TagMatch.match_many` could refuse, so that a batch is refused before others come after it."""
    if queries.schema.names == [TAGS]:
        tag_lists(queries.column(TAGS), f"column {TAGS!r}", first_row=first_row)
        return
    try:
        queries_in(queries, plane=plane, first_row=first_row)
    except (pa.ArrowException, NotImplementedError) as error:
        raise InvalidTypeError(f"the columns cannot be read: {error}") from None


def together(some: Sequence[Messages]) -> Any:
    """What `TagMatch.match_many` is to be asked for several batches at once."""
    first = some[0].queries
    if len(some) == 1:
        return first.column(TAGS) if first.schema.names == [TAGS] else first
    table = pa.Table.from_batches([each.queries for each in some])
    if len(table) < _FEW_ROWS * len(some):
        table = table.combine_chunks()
    return table.column(TAGS) if table.column_names == [TAGS] else table


class Gathering:
    """Batches that have come and are not taken yet."""

    def __init__(self, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._batches: deque[Messages] = deque()
        self._rows = self._bytes = 0
        self._ended = self._closed = False
        self._lock = threading.Lock()
        self._room, self._some = threading.Condition(self._lock), threading.Condition(self._lock)
        self._error: BaseException | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes in."""
        return self._ended

    def put(self, batch: Messages) -> bool:
        """Add a batch, when there is room; returns whether somebody still takes it."""
        with self._lock:
            while (
                not self._closed
                and self._batches
                and (self._rows + batch.rows > self._most_rows or self._bytes + batch.nbytes > self._most_bytes)
            ):
                self._room.wait()
            if self._closed:
                return False
            self._batches.append(batch)
            self._rows += batch.rows
            self._bytes += batch.nbytes
            self._some.notify()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Say that nothing more comes, and why, if that is an error."""
        with self._lock:
            self._ended, self._error = True, error
            self._some.notify()

    def close(self) -> int:
        """Say that nothing more is taken; returns how many rows are left behind."""
        with self._lock:
            self._closed, left = True, self._rows
            self._batches.clear()
            self._rows = self._bytes = 0
            self._room.notify_all()
            return left

    def take(self, most_rows: int, timeout: float | None = None) -> list[Messages]:
        """All that has come, up to so many rows but at least one batch; waits for it. Empty at the end, or in time."""
        with self._lock:
            if not self._batches and not self._ended:
                self._some.wait(timeout)
            taken: list[Messages] = []
            rows = 0
            while self._batches and (not taken or rows + self._batches[0].rows <= most_rows):
                batch = self._batches.popleft()
                rows += batch.rows
                self._bytes -= batch.nbytes
                taken.append(batch)
            self._rows -= rows
            if taken:
                self._room.notify()
            elif self._ended and self._error is not None:
                raise self._error
            return taken
