"""Only some of the subscriptions: those of keys whose data satisfies an expression, as their own index.

The expression is matched with the data, a message for each different row of the columns that it names. What it means is
so what it means in `where`: a column without a value is an attribute without one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa

from tagmatch.background import renew_in_forks
from tagmatch.changing import Answering, Changing, Check, Ready
from tagmatch.model import clock
from tagmatch.model.arrays import BoolArray, I64Array, Strings
from tagmatch.model.asked import DATA, AskedRows
from tagmatch.model.change_counts import DELETE, REMOVE
from tagmatch.model.columns import rows_of_tags
from tagmatch.model.data_types import Schema, text_of_type, unknown_column
from tagmatch.model.directory import Keys, found_in, keys_at, listed, some_keys
from tagmatch.model.errors import AccessError, FilterError, InvalidTypeError
from tagmatch.model.input.messages import queries_in
from tagmatch.model.layouts import empty_segment
from tagmatch.model.options import LayoutOptions, MatchOptions
from tagmatch.model.parallel import even_ranges, run
from tagmatch.model.tables import Segment, Snapshot
from tagmatch.model.where.alternatives import Term
from tagmatch.model.where.comparisons import NOW
from tagmatch.model.where.constraints import (
    COMPARED,
    CONTAINS,
    LIKE,
    MATCHES,
    PHRASES,
    RANGES,
    SUFFIX,
    Constraint,
    Operator,
    name_text,
)
from tagmatch.model.where.declared import Declared, reading
from tagmatch.model.where.language import stored_rows, terms_of
from tagmatch.model.where.types import Network
from tagmatch.model.where.values import Value, key_of, type_of
from tagmatch.partitioner.choosing import Chosen, chosen_of
from tagmatch.partitioner.consolidation import StagedChanges, consolidated
from tagmatch.pipeline.areas.positions import Clients
from tagmatch.pipeline.devices import matcher_of, parts_for
from tagmatch.pipeline.segment import ids_of

# Messages of a packet
_MESSAGES = 1 << 13
# Numbers of keys are looked up in a table if the greatest is at most this many times the number of keys
_SPARSE = 8
# Integers that are decimals to attributes
_UNSIGNED = range(2**63, 2**64)


class _OfData(Declared):
    """How the operands of expressions about data are read: columns have greater integers than attributes."""

    def operands(self, name: str, operator: Operator, given: Sequence[Value]) -> Sequence[Value]:  # noqa: ARG002
        """As they are given, with integers that need an unsigned column as decimals."""
        return [Decimal(value) if isinstance(value, int) and value in _UNSIGNED else value for value in given]


_OF_DATA = _OfData((), strict=False)


class DataTest:
    """An expression about columns of data; InvalidTypeError, InvalidValueError and FilterError name the mistake."""

    def __init__(self, text: object, schema: Schema, what: str = "only") -> None:
        if not isinstance(text, str):
            raise InvalidTypeError(f"{what} must be a string, not {type(text).__name__} {text!r:.80}")
        try:
            with reading(_OF_DATA):
                terms = list(terms_of(text))
            rows = stored_rows(text, plane=False, declared=_OF_DATA)
        except FilterError as error:
            raise FilterError(f"{what}: {str(error).removeprefix('where: ')}") from None
        for term in terms:
            _check(term, schema, what)
        tests = [term for term in terms if isinstance(term, Constraint)]
        self.text, self.names = text, sorted({name for test in tests for name in test.attributes})
        options, staged = LayoutOptions(), StagedChanges()
        staged.extend([rows_of_tags(rows)], np.zeros(len(rows), np.uint64), removed=False)
        snapshot, _ = consolidated(Snapshot((empty_segment(options, "integer"),)), staged.changes(), options, now=0)
        self._matcher = matcher_of(parts_for(snapshot, MatchOptions(device="cpu")))

    def chosen(self, segment: Segment, threads: int) -> BoolArray:
        """Whether the data of each key in a segment's key table satisfies this, by the keys' places."""
        numbers, records = segment.keys.keys.values, segment.records
        columns = (
            [] if records is None else [name for name in self.names if DATA + name in records.columns.schema.names]
        )
        if records is None or not columns or not len(records):
            return np.full(len(numbers), self.of_nothing())
        # The last one is of keys without a record
        holds = np.append(self.of_rows(records.columns, threads), self.of_nothing())
        last = int(records.keys[-1])
        if last >= _SPARSE * len(numbers):
            return holds[records.places_of(numbers)]
        by_number = np.full(last + 2, holds[-1])
        by_number[records.keys] = holds[:-1]
        found: BoolArray = by_number[np.minimum(numbers, last + 1)]
        return found

    def of_rows(self, table: pa.Table, threads: int = 1) -> BoolArray:
        """Whether each row of a table of records satisfies this."""
        found = {name: _plain(table.column(DATA + name)) for name in self.names if DATA + name in table.schema.names}
        if not found:
            return np.full(len(table), self.of_nothing())
        codes, firsts = _different(list(found.values()), len(table))
        different = pa.table({name: column.take(pa.array(firsts)) for name, column in found.items()})
        return self._hold(different, threads)[codes]

    def of_nothing(self) -> bool:
        """Whether a key without data satisfies this."""
        return bool(self._hold(pa.table({self.names[0]: pa.nulls(1)}), 1)[0])

    def _hold(self, values: pa.Table, threads: int) -> BoolArray:
        """Whether each row of attributes satisfies this."""
        given = pa.StructArray.from_arrays([each.combine_chunks() for each in values.columns], values.schema.names)
        messages = queries_in(pa.table({"attributes": pa.chunked_array([given])}), plane=False)

        def some(part: tuple[int, int]) -> BoolArray:
            found: BoolArray = ids_of(self._matcher, messages[0], *part).lengths() > 0
            return found

        count = len(values)
        parts = even_ranges(count, -(-count // _MESSAGES))
        return np.concatenate([np.zeros(0, np.bool_), *run(some, parts, threads)])


def _check(term: Term, schema: Schema, what: str) -> None:
    """See that a test can be of data, and that of its column a value may satisfy it."""
    if not isinstance(term, Constraint) or not term.attribute:
        raise FilterError(
            f"{what}: tags and areas are of sets, and this asks for data: {_text(term)} cannot stand here"
        )
    if NOW in term.attributes:
        raise FilterError(f"{what}: data does not change with the time, and {_text(term)} does: write the time itself")
    if term.attribute.endswith(PHRASES):
        raise FilterError(f"{what}: data is not analysed, and has no words to find a phrase in: {_text(term)}")
    for attribute in term.attributes:
        if attribute not in schema:
            raise unknown_column(attribute, schema, what)
    kind = schema[term.attribute]
    name, own, wanted = name_text(term.attribute), _type_of_values(kind), _wanted_types(term, schema)
    if own is None:
        raise InvalidTypeError(f"{what}: column {name} is of {text_of_type(kind)}: without a zone, times have no order")
    for each in wanted:
        if each != own:
            raise InvalidTypeError(
                f"{what}: column {name} is of {text_of_type(kind)}, and no value of it is a {each}: {_text(term)}"
            )


def _text(term: Term) -> str:
    return term.text if isinstance(term, Constraint) else f'tags {{"{term}"}}'


def _wanted_types(test: Constraint, schema: Schema) -> Iterator[str]:
    """What types of values a test asks for."""
    if test.kind in (SUFFIX, CONTAINS, LIKE, MATCHES):
        yield "text"
    elif test.kind == COMPARED:
        yield from filter(None, (_type_of_values(schema[each]) for each in test.attributes[1:]))
    elif test.kind == RANGES:
        for _, operands in test.tests:
            for value in operands:
                yield "IP address" if isinstance(value, Network) else type_of(key_of(value))


def _type_of_values(kind: pa.DataType) -> str | None:
    """What messages call the values of a column; `None` if none can be asked for."""
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return None if pa.types.is_timestamp(kind) and kind.tz is None else "time"
    return "text"


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """A column as attributes have it."""
    if pa.types.is_uint64(column.type):  # attributes have only half of these
        column = column.cast(pa.decimal128(20, 0))
    return column.unify_dictionaries().combine_chunks()


def _different(columns: Sequence[pa.Array], count: int) -> tuple[I64Array, I64Array]:
    """The number of each row among the different rows, and the first place of each different row."""
    codes, firsts = np.zeros(count, np.int64), np.zeros(min(count, 1), np.int64)
    for column in columns:
        encoded = column.dictionary_encode() if not pa.types.is_dictionary(column.type) else column
        size = len(encoded.dictionary) + 1
        codes = codes * size + encoded.indices.cast(pa.int64()).fill_null(size - 1).to_numpy()
        most = len(firsts) * size
        if most <= 2 * count:  # else sorting takes no longer than such a table
            first = np.full(most, -1)
            first[codes[::-1]] = np.arange(count)[::-1]
            there = np.flatnonzero(first >= 0)
            firsts, numbers = first[there], np.empty(most, np.int64)
            numbers[there] = np.arange(len(there))
            codes = numbers[codes]
        else:
            _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    return codes, firsts


class Restricted:
    """Of a changing snapshot, what answers for keys whose data satisfies a test; any number of threads may share it."""

    def __init__(self, whole: Changing | Restricted, test: DataTest, options: MatchOptions, clients: Clients) -> None:
        self._whole, self.test, self._options, self._clients = whole, test, options, clients
        #: As `Changing` has it, if something asked and nothing has changed since
        self.ready = Ready()
        whole.tell(self.ready)
        self._lock = threading.Lock()
        renew_in_forks(self, "_lock")
        self._known: tuple[Answering | None, Answering | None, list[Chosen]] = (None, None, [])

    @property
    def is_laid_out(self) -> bool:
        """As `Changing` has it."""
        of, known, _ = self._known
        return known is not None and self._whole.is_laid_out and of is self._whole.answering

    @property
    def answering(self) -> Answering:
        """As `Changing` has it."""
        whole, (of, known, _) = self._whole.answering, self._known
        return known if of is whole and known is not None else self._of(whole)

    def tell(self, each: Ready) -> None:
        """As `Changing` has it."""
        self._whole.tell(each)

    @property
    def layout_options(self) -> LayoutOptions:
        """As `Changing` has it."""
        return self._whole.layout_options

    @property
    def held(self) -> Answering:
        """As `Changing` has it."""
        return self._of(self._whole.held)

    @property
    def snapshot(self) -> Snapshot:
        """As `Changing` has it."""
        return self.answering.snapshot

    def _of(self, whole: Answering) -> Answering:
        with self._lock:
            of, known, chosen = self._known
            if of is whole and known is not None:
                return known
            threads, options = self._options.threads, self._whole.layout_options
            with whole.snapshot.verified():
                snapshot, chosen = chosen_of(
                    whole.snapshot, self._choose, options, chosen, now=clock.now_us(), threads=threads
                )
            earlier = [*whole.parts, *(() if known is None else known.parts)]
            parts = parts_for(snapshot, self._options, earlier, self._clients)
            known = Answering(snapshot, parts, matcher_of(parts))
            self._known = (whole, known, chosen)
            self.ready.one = known.matcher.one_query if self._whole.ready.one is not None else None
            if self._whole.held is not whole:
                self.ready.one = None
            return known

    def _choose(self, segment: Segment) -> BoolArray:
        return self.test.chosen(segment, self._options.threads)


class Rights:
    """What a user may change who sees only keys whose data satisfies a test: these, and keys without sets."""

    def __init__(self, whole: Changing, own: Restricted) -> None:
        self._whole, self._own, self._test = whole, own, own.test

    def check_of(self, keys: Keys, puts: AskedRows | None = None) -> Check:
        """A check of earlier changes before such keys are changed, which raises AccessError.

        `puts` has the records of those that are put, which are looked at now.
        """
        if puts is not None and not self._hold(puts.records, puts.table).all():
            raise AccessError(f"data that is put must satisfy {self._test.text}, which is all that this user may see")

        def check(staged: StagedChanges) -> None:
            stored = [found_in(segment, keys).wanted for segment in self._whole.snapshot.segments]
            own = [found_in(segment, keys).wanted for segment in self._own.snapshot.segments]
            foreign = np.setdiff1d(np.concatenate(stored), np.concatenate(own))
            if len(foreign) or self._are_staged_by_others(staged, keys, np.concatenate(own)):
                raise AccessError(f"a key belongs to another user: its data does not satisfy {self._test.text}")

        return check

    def _are_staged_by_others(self, staged: StagedChanges, keys: Keys, stored: I64Array) -> bool:
        """Whether staged changes of others give a key other data, or sets and no data; `stored` are one's own."""
        own = [some_keys(keys, stored)]
        for put, records, table in staged.puts_of(keys):
            if len(put) and not self._hold(records, table).all():
                return True
            own.append(put)
        if self._test.of_nothing():
            return False
        changes = staged.of_keys(keys).changes()
        added = changes.keys[(changes.kinds != REMOVE) & (changes.kinds != DELETE)]
        given = keys_at(changes.names if isinstance(keys, Strings) else None, added)
        known = {each for part in own for each in listed(part)}
        return any(each not in known for each in listed(given))

    def _hold(self, records: I64Array | None, table: pa.Table | None) -> BoolArray:
        """Whether the data of keys satisfies the test: their rows of a table, -1 for no data; `None`: none has any."""
        if records is None or table is None:
            return np.array([self._test.of_nothing()])
        found: BoolArray = np.append(self._test.of_rows(table), self._test.of_nothing())[records]
        return found
