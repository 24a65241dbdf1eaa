"""The engine of a `TagMatch`: it opens an index, stages changes, answers queries, and says what there is."""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import compress
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.background import renew_in_forks
from tagmatch.best import Answers, Maker, Rankings, as_counts, best_of, check_attributes, counts_of, limit_of
from tagmatch.changing import Changing, Check, Staging
from tagmatch.contents import (
    absent_text,
    every_set,
    explained,
    missing_text,
    pairs,
    schema_of,
    schema_of_data,
    sets_with,
)
from tagmatch.highlights import KeyPlaces, lists_of
from tagmatch.model import clock
from tagmatch.model.arrays import Lists, Strings, TagLists, U8Array, U64Array, give_back
from tagmatch.model.arrow import from_strings
from tagmatch.model.asked import AskedRows
from tagmatch.model.change_counts import DELETE, PUT, ChangeCounts
from tagmatch.model.clock import expiry_time
from tagmatch.model.columns import KEY_CHECKS, rows_of_tags, tag_list
from tagmatch.model.data_types import data_schema, some_columns, text_of_type
from tagmatch.model.directory import listed
from tagmatch.model.errors import (
    ClosedError,
    IndexChangedError,
    InvalidValueError,
    NotStoredError,
    ResultTooLargeError,
    StagedChangesWarning,
)
from tagmatch.model.input.declared_columns import as_declared, attributes_of
from tagmatch.model.input.messages import Message, Queries, attributes_alone, queries_of, rows_of_messages
from tagmatch.model.input.places import NO_PLACE, area_has, checked_locations, coordinates, packed_place
from tagmatch.model.input.putting import kinds_of_put, rows_to_put, to_put
from tagmatch.model.input.subscriptions import COLUMNS, alternatives, columns_of, nears_of, rows_to_store
from tagmatch.model.input.values import NO_ATTRIBUTES, packed
from tagmatch.model.kernels.tag_table import UNKNOWN
from tagmatch.model.layouts import check_segment, empty_segment, rules_of
from tagmatch.model.names import counted
from tagmatch.model.options import KeyType, LayoutOptions, MatchOptions, StagingOptions, Wanted
from tagmatch.model.records import Record
from tagmatch.model.storage.format import Commit
from tagmatch.model.storage.log import key_type_of_logs
from tagmatch.model.storage.positions import key_type_of_positions, open_positions, save_positions
from tagmatch.model.storage.repository import Repository, location_of, open_with
from tagmatch.model.tables import NEVER, Snapshot
from tagmatch.model.where.areas import NOWHERE, Circle, Place
from tagmatch.model.where.constraints import Where
from tagmatch.model.where.declared import Declared, declared_of
from tagmatch.model.where.values import RESERVED, is_reserved
from tagmatch.only import DataTest, Restricted, Rights
from tagmatch.partitioner.consolidation import (
    StagedChanges,
    count_tags,
    keys_without_sets,
    missing_rows,
    rows_with,
    to_merge,
)
from tagmatch.partitioner.replacing import no_tags
from tagmatch.partitioner.upgrading import Upgraded, rewriting
from tagmatch.pipeline.areas.positions import Clients, WithinAreas
from tagmatch.pipeline.combined import Making
from tagmatch.pipeline.devices import Part
from tagmatch.pipeline.filters.index import by_path, paths_of
from tagmatch.pipeline.one import Alone, alone
from tagmatch.pipeline.run.callers import Answered
from tagmatch.pipeline.segment import Matcher, ids_of
from tagmatch.pipeline.service import Pipeline
from tagmatch.reasons import Asked, Reasons
from tagmatch.records import (
    Reader,
    data_beside,
    every_record,
    have_sets,
    listed_keys,
    record_of,
)

#: Keys that one call of `match_many` can give
MAX_KEYS = 2**31 - 1

#: Expressions of `only` whose keys an index has ready, those that were asked for last
MOST_READY = 64

# More changes take memory that is worth giving back
_MANY_CHANGES = 100_000
# Messages whose highlights are made at once
_HIGHLIGHTED = 1024

#: What raises an error unless a key may be changed that has this record, or none
Condition: TypeAlias = Callable[[Record[Any] | None], None]
#: What answers one message, the message as that takes it alone, if it need not be in a packet, and its parts
Asking: TypeAlias = tuple[Matcher, Alone | None, tuple[Iterable[str], bytes, bytes]]

P = ParamSpec("P")
R = TypeVar("R")


def _interrupted_plainly(method: Callable[P, R]) -> Callable[P, R]:
    """The method, which raises `KeyboardInterrupt` also where Ctrl-C comes as a kernel is called.

    Numba goes on as if nothing had happened, and Python makes a `SystemError` of that, or of that another one.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SystemError as error:
            _raise_interrupt(error)
            raise

    return call


def _raise_interrupt(error: SystemError) -> None:
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    if isinstance(cause, KeyboardInterrupt):
        raise cause from None


class LocalEngine:
    """An index of this process, its changes, and the pipeline that answers from it; `Index` says what methods do."""

    # What `only` copies has these where others have them, and Python reads them as soon
    __slots__ = (
        "__weakref__", "_asked_for", "_counts_at", "_files", "_finalizer", "_is_declaring", "_is_indexed",
        "_key_type", "_location", "_options", "_pipeline", "_positions_saved", "_rankings", "_readers", "_reading",
        "_ready", "_rights", "_saving", "_staging", "_warning", "changing", "clients", "only",
    )  # fmt: skip

    def __init__(
        self,
        location: Repository | None,
        snapshot: Snapshot,
        layout_options: LayoutOptions,
        staging: StagingOptions,
        options: MatchOptions,
    ) -> None:
        self._location, self._options, self._key_type = location, options, snapshot.key_type
        self._staging = Staging(location, self._key_type, staging, options.threads, plane=options.plane)
        self._staging.take_columns(schema_of_data(snapshot), f"the index {location or 'in memory'}")
        self._staging.take_columns(data_schema(staging.data, COLUMNS), "data= of this call")
        attributes = attributes_of(staging.attributes, staging.analyzers, layout_options.attributes)
        strict = layout_options.strict if staging.strict is None else staging.strict
        are_known = (attributes, strict) == (layout_options.attributes, layout_options.strict)
        layout_options = replace(layout_options, attributes=attributes, strict=strict)
        declared_of(attributes, strict=strict)  # whose analyzers must be there
        self._files = None if location is None else location.changeable
        self._is_declaring, self._is_indexed = self._files is not None and not are_known, staging.keys == "indexed"
        self.clients = Clients(has_strings=self._key_type == "string")
        saved = None if self._files is None else open_positions(self._files, self._key_type, plane=options.plane)
        if saved is not None:
            self.clients.place(saved)
        self._positions_saved, self._saving = self.clients.version, threading.Lock()
        renew_in_forks(self, "_saving")
        self.changing = Changing(
            location, snapshot, self._staging, layout_options, options, staging.keep_snapshots, self.clients
        )
        # What reads: of all keys, or, of an engine that `only` returns, of some
        self._reading: Changing | Restricted = self.changing
        self._ready = self.changing.ready
        self._restrict()
        self._rights: Rights | None = None  # What may be changed; `None`: everything
        self._pipeline, self._rankings = Pipeline(options), Rankings()
        self._counts_at = self._pipeline.counts_at
        self._readers: tuple[Snapshot | None, list[Reader]] = (None, [])
        # Whether any condition asks for one of these attributes, which were looked for last
        self._asked_for: tuple[Snapshot | None, list[str], bool] = (None, [], False)
        # Its threads end with this object, also where `close` is forgotten
        self._finalizer: weakref.finalize[Any, Any] = weakref.finalize(self, self._pipeline.abandon)
        self._finalizer.atexit = False
        self._warning: weakref.finalize[Any, Any] = weakref.finalize(self, _end_staging, self._staging, location)

    @classmethod
    def at(
        cls,
        path: object,
        key_type: KeyType | None,
        layout: Mapping[str, Any],
        staging: StagingOptions,
        options: MatchOptions,
        *,
        number: int | None = None,
        must_exist: bool = False,
    ) -> Self:
        """The engine of the index at `path`, or of a snapshot of it, or of a new one unless it must exist.

        `layout` has those fields of `LayoutOptions` that are given; others are as the index has them.
        """
        if key_type not in (None, *get_args(KeyType)):
            raise InvalidValueError(f'key_type must be "integer" or "string", not {key_type!r}')
        location = None if path is None and not must_exist else location_of(path, "path", number)
        if options.auto_reload is not None:
            if location is None:
                raise InvalidValueError("auto_reload needs a path: no other program can change an index in memory")
            location.check_reloadable()
        if location is not None:
            if not must_exist:
                location.check_writable()
            if must_exist or location.has_index():
                snapshot = open_with(location, key_type)
                layout_options = replace(snapshot.segments[0].options, **layout)
                return cls(location, snapshot, layout_options, staging, options)
            if key_type is None and (files := location.changeable) is not None:
                # What an earlier program has staged, or moved, before anything was consolidated
                key_type = key_type_of_logs(files) or key_type_of_positions(files)
        layout_options = LayoutOptions(**layout)
        snapshot = Snapshot((empty_segment(layout_options, key_type or "integer"),))
        return cls(location, snapshot, layout_options, staging, options)

    @property
    def snapshot(self) -> Snapshot:
        return self._reading.snapshot

    def _restrict(self) -> None:
        """Let `only` know what it answered last; it keeps no engine from its end, nor takes the time of a method."""
        self.only: Callable[[object], LocalEngine] = functools.lru_cache(MOST_READY)(partial(_only, weakref.ref(self)))

    def limited(self, expression: str) -> LocalEngine:
        """As `only`; keys that are put must satisfy the expression, and no others change: else an AccessError."""
        own = copy(self.only(expression))
        own._restrict()
        assert isinstance(own._reading, Restricted)
        own._rights = Rights(self.changing, own._reading)
        return own

    def schema(self) -> dict[str, pa.DataType]:
        """The columns of data that keys have, or may have."""
        return {**schema_of_data(self.changing.snapshot), **self._staging.schema()}

    def _check_writable(self) -> None:
        """Refuse a change that could not be saved; with the first one, the index keeps its declarations."""
        if self._location is not None:
            self._location.check_writable()
        if self._is_declaring:
            self.changing.keep_declared()
            self._is_declaring = False

    def _check_indexed(self) -> None:
        """Refuse a question or a change by key if keys are not to be indexed."""
        if not self._is_indexed:
            raise InvalidValueError(
                'this index was opened with keys="unindexed", so that nothing is asked or changed by key: open it with '
                'keys="indexed", the default'
            )

    @property
    def declared(self) -> Declared:
        """What is declared of attributes."""
        options = self.changing.layout_options
        return declared_of(options.attributes, strict=options.strict)

    # -- changes -----------------------------------------------------------------------------------------------------

    @_interrupted_plainly
    def stage_one(
        self,
        tags: object,
        key: object,
        *,
        where: object = None,
        area: object = None,
        expires: object = None,
        removed: bool = False,
        must_exist: bool = False,
    ) -> int:
        self._check_writable()
        rows = alternatives(tags, where, area, plane=self._options.plane, declared=self.declared)
        checks = KEY_CHECKS[self._key_type]
        value = checks.one(key, "key")
        time = NEVER if expires is None else expiry_time(expires, clock.now_us())
        if len(rows) == 1 and not must_exist:
            self._staging.append(rows[0], value, removed=removed, expires=time)
        else:
            keys, chunks = checks.many([value] * len(rows), "keys"), [rows_of_tags(rows)]
            check = self._check_of(chunks, keys) if must_exist else None
            times = np.full(len(rows), time)
            self._staging.extend(chunks, keys, removed=removed, expires=times, is_single=True, check=check)
        return len(rows)

    @_interrupted_plainly
    def stage(self, columns: Mapping[str, Any], *, removed: bool = False, must_exist: bool = False) -> int:
        self._check_writable()
        options, declared = self._options, self.declared
        rows = rows_to_store(columns, self._key_type, plane=options.plane, threads=options.threads, declared=declared)
        check = self._check_of(rows.chunks, rows.keys) if must_exist else None
        self._staging.extend(rows.chunks, rows.keys, removed=removed, expires=rows.expires, check=check)
        return len(rows.keys)

    @_interrupted_plainly
    def put_one(self, key: object, tags: object, *, where: object, area: object, expires: object, data: object) -> int:
        self._check_indexed()
        self._check_writable()
        schema = self._staging.schema() if data else {}
        rows, asked = to_put(tags, where, area, data, schema, plane=self._options.plane, declared=self.declared)
        checks = KEY_CHECKS[self._key_type]
        value = checks.one(key, "key")
        time = NEVER if expires is None else expiry_time(expires, clock.now_us())
        if len(rows) == 1 and self._rights is None:
            self._staging.append(rows[0], value, removed=PUT, expires=time, asked=asked)
        else:
            keys, records = checks.many([value] * len(rows), "keys"), AskedRows.of([asked, *[None] * (len(rows) - 1)])
            times, kinds = np.full(len(rows), time), kinds_of_put(len(rows))
            check = self._right_to_put(keys, kinds, records)
            self._staging.extend(
                [rows_of_tags(rows)], keys, removed=kinds, expires=times, records=records, is_single=True, check=check
            )
        return len(rows)

    def _right_to_put(self, keys: U64Array | Strings, kinds: U8Array, records: AskedRows) -> Check | None:
        if self._rights is None or not len(keys):
            return None
        own = None if records.records is None else records.records[kinds == PUT]
        return self._rights.check_of(keys, AskedRows(own, records.table))

    @_interrupted_plainly
    def put_table(self, table: Any, *, match_all: bool, condition: Condition | None = None) -> int:
        self._check_indexed()
        self._check_writable()
        schema, options = self._staging.schema(), self._options
        columns = columns_of(table, match_all=match_all, data=schema)
        data = {name: columns.pop(name) for name in schema if name in columns}
        rows, kinds, records = rows_to_put(
            columns,
            data,
            self._key_type,
            schema,
            plane=options.plane,
            threads=options.threads,
            declared=self.declared,
        )
        check = self._on_condition(self._right_to_put(rows.keys, kinds, records), rows.keys, condition)
        self._staging.extend(rows.chunks, rows.keys, removed=kinds, expires=rows.expires, records=records, check=check)
        return len(rows.keys)

    def _on_condition(self, right: Check | None, keys: U64Array | Strings, condition: Condition | None) -> Check | None:
        """A check that also asks a condition for the record of the one key that is changed."""
        if condition is None:
            return right
        (key,) = dict.fromkeys(listed(keys))

        def check(staged: StagedChanges) -> None:
            if right is not None:
                right(staged)
            if len(staged.of_keys(keys).changes().keys):
                raise IndexChangedError(f"a change of key {key!r} is staged; consolidate, and look at it again")
            if self.changing.is_behind:
                raise IndexChangedError(f"another program has saved changes; reload, and look at key {key!r} again")
            condition(self.get(key))

        return check

    @_interrupted_plainly
    def delete(self, keys: Any, *, must_exist: bool, is_single: bool, condition: Condition | None = None) -> int:
        self._check_indexed()
        self._check_writable()
        checks = KEY_CHECKS[self._key_type]
        own = checks.many([checks.one(keys, "key")], "keys") if is_single else checks.many(keys, "keys")

        right = None if self._rights is None else self._rights.check_of(own)
        right = self._on_condition(right, own, condition)

        def check(staged: StagedChanges) -> None:
            if right is not None:
                right(staged)
            if not must_exist:
                return
            snapshot, threads = self.changing.snapshot, self._options.threads
            with snapshot.verified():
                gone = keys_without_sets(snapshot, staged, own, now=clock.now_us(), threads=threads)
            if len(gone):
                raise NotStoredError(absent_text(own, gone))

        checked = check if len(own) and (must_exist or right is not None) else None
        self._staging.extend([no_tags(len(own))], own, removed=DELETE, is_single=is_single, check=checked)
        return len(own)

    def _check_of(self, chunks: list[TagLists], keys: U64Array | Strings) -> Check:
        """What raises an error, before rows are removed, unless all of them are there."""

        def check(staged: StagedChanges) -> None:
            snapshot, threads = self.changing.snapshot, self._options.threads
            with snapshot.verified():
                gone = missing_rows(snapshot, staged, chunks, keys, now=clock.now_us(), threads=threads)
            if len(gone):
                raise NotStoredError(missing_text(chunks, keys, gone, self.declared.decimals))

        return check

    @_interrupted_plainly
    def consolidate(self, *, full: bool) -> ChangeCounts:
        self.check_open()
        # Before the changes take effect: what fails then changes nothing
        if self.clients.version != self._positions_saved and self._files is not None:
            self.save_positions()
        became = self.changing.consolidate(full=full)
        if sum(became) >= _MANY_CHANGES:
            give_back()
        return became

    @_interrupted_plainly
    def upgrade(self) -> Upgraded:
        """What `tagmatch.upgrade` does."""
        assert self._location is not None
        self._location.check_writable()
        if len(self._staging):
            self._staging.hold()
            self.consolidate(full=False)
        self._staging.hold()
        self.reload()
        before = self.snapshot
        with before.verified():
            changes = rewriting(before, self.declared, plane=self._options.plane)
        if changes is not None:
            rows, keys, kinds, expires, records, _ = changes
            self._staging.extend([rows], keys, removed=kinds, expires=expires, records=records)
            self.consolidate(full=False)
        rewritten = 0 if changes is None else changes.rewritten
        after = self.snapshot
        assert after.number is not None
        return Upgraded(after.number, len(before), len(after), rewritten)

    @_interrupted_plainly
    def reload(self) -> bool:
        return self.changing.reload()

    # -- queries -----------------------------------------------------------------------------------------------------

    def match(self, tags: Iterable[str], attributes: object, place: Place, unique: bool) -> Any:
        try:  # as `_interrupted_plainly`, whose call takes a fifteenth of the time of a message
            if place is not NOWHERE:
                return self._matched(self._asking(tags, attributes, place), unique=unique)
            given = NO_ATTRIBUTES if attributes is None else self._packed(attributes)
            one = self._ready.one or self._reading.answering.matcher.one_query
            if one is not None and (found := one.enter(tags, unique, self._counts_at, given)) is not None:
                return found
            matcher = self._reading.answering.matcher
            one = matcher.one_query
            return self._matched(
                (matcher, alone(one, tags, given, entered=True), (tags, given, NO_PLACE)), unique=unique
            )
        except SystemError as error:
            _raise_interrupt(error)
            raise

    def _matched(self, asking: Asking, *, unique: bool) -> Any:
        matcher, asked, given = asking
        if asked is not None:
            return self._pipeline.match(matcher, asked, unique)
        return self._pipeline.match_in_packet(matcher, _message(*given), unique=unique)

    @_interrupted_plainly
    def number(self, tags: Iterable[str], attributes: object, place: Place, *, wanted: Wanted) -> int:
        matcher, asked, given = self._asking(tags, attributes, place)
        return self._pipeline.number(matcher, asked, partial(_message, *given), wanted)

    @_interrupted_plainly
    def match_data(
        self, tags: Iterable[str], attributes: object, place: Place, columns: Sequence[str]
    ) -> list[dict[str, Any]]:
        snapshot, _, matcher = self._reading.answering
        return self._with_data(
            snapshot, self._matched(self._asking(tags, attributes, place, matcher), unique=False), columns
        )

    def _with_data(self, snapshot: Snapshot, keys: list[Any], columns: Sequence[str]) -> list[dict[str, Any]]:
        kind = pa.large_string() if self._key_type == "string" else pa.uint64()
        found: list[dict[str, Any]] = data_beside(snapshot, pa.array(keys, kind), columns, self.schema()).to_pylist()
        return found

    def one_query(self, tags: Iterable[str], attributes: object, place: Place) -> Queries:
        """One message as it is given: `_queries` gives its attributes their declared types."""
        given = NO_ATTRIBUTES if attributes is None else packed(attributes)
        plane = self._options.plane
        packed_at = NO_PLACE if place is NOWHERE else packed_place(place.location, place.within, plane=plane)
        return Queries([rows_of_messages([_message(tags, given, packed_at)])])

    @_interrupted_plainly
    def match_many(
        self,
        queries: Any,
        *,
        wanted: Wanted = Wanted.keys,
        channel: str | None = None,
        waited: float = 0.0,
        columns: Sequence[str] | None = None,
    ) -> pa.Array:
        snapshot, _, matcher = self._reading.answering
        asked = self._queries(queries)
        if wanted is Wanted.highlights:
            places = self._rankings.places(snapshot)
            return places.highlights(self._made((self._answers(places), _HIGHLIGHTED), matcher, asked, channel, waited))
        if asked.have_areas:
            matcher = self._within(matcher)
        counted = wanted is Wanted.unique_counts
        if counted:  # those that strings have in several segments are the same only by their bytes
            wanted = Wanted.unique
        answers = self._pipeline.match_many(matcher, asked.chunks, wanted=wanted, channel=channel, waited=waited)
        if wanted.is_number:
            return pa.array(answers.values if wanted is Wanted.counts else answers.values > 0)
        _check_size(answers)
        answers, values = matcher.keys.answers(answers, unique=wanted is Wanted.unique)
        if counted:
            return pa.array(answers.lengths().astype(np.uint64))
        if columns is not None:
            values = data_beside(snapshot, values, columns, self.schema())
        offsets = pa.py_buffer(answers.offsets.astype(np.int32, copy=False))
        return pa.Array.from_buffers(pa.list_(values.type), len(answers), [None, offsets], children=[values])

    @_interrupted_plainly
    def best(
        self,
        queries: Any,
        limit: object,
        order_by: object,
        score: object,
        *,
        channel: str | None,
        waited: float,
        columns: Sequence[str] | None,
    ) -> pa.ListArray:
        snapshot, _, matcher = self._reading.answering
        asked, checked = self._queries(queries, score), limit_of(limit)
        order, scored = self._rankings.best(snapshot, self.schema(), order_by, score)
        if scored is not None:
            check_attributes(asked.chunks, scored)
        maker = best_of(self._answers(order.places), checked, order, scored)
        found = self._made(maker, matcher, asked, channel, waited)
        keys = order.keys.take(pa.array(found.values))
        values = keys if columns is None else data_beside(snapshot, keys, columns, self.schema())
        return lists_of(found.offsets, values)

    @_interrupted_plainly
    def counts_by(
        self, queries: Any, column: object, *, unique: bool, channel: str | None, waited: float
    ) -> pa.ListArray:
        snapshot, _, matcher = self._reading.answering
        asked = self._queries(queries)
        order, groups = self._rankings.groups(snapshot, self.schema(), column)
        maker = counts_of(self._answers(order.places), order, groups, unique=unique)
        return as_counts(self._made(maker, matcher, asked, channel, waited), groups)

    def _answers(self, places: KeyPlaces) -> Answers:
        return partial(places.answers, self.clients, self._options.plane)

    def _made(self, maker: Maker, matcher: Matcher, asked: Queries, channel: str | None, waited: float) -> Lists:
        """What is made of the sets of many messages."""
        making = Making(matcher, *maker)
        found = self._pipeline.match_many(making, asked.chunks, wanted=Wanted.keys, channel=channel, waited=waited)
        _check_size(found)
        return found

    @_interrupted_plainly
    def submit(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        *,
        unique: bool,
        timeout: float | None,
        channel: str | None = None,
    ) -> Future[Any]:
        matcher, asked, given = self._asking(tags, attributes, place)
        row = partial(_message, *given)
        return self._pipeline.submit(matcher, asked, row, unique=unique, timeout=timeout, channel=channel)

    @_interrupted_plainly
    def awaited(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        *,
        unique: bool,
        channel: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Awaitable[Any]:
        if not self._reading.is_laid_out:
            return self._awaited_later(tags, attributes, place, unique=unique, channel=channel, columns=columns)
        if columns is not None:
            return self._awaited_data(tags, attributes, place, columns, channel)
        if place is NOWHERE and channel is None and (found := self._entered(tags, attributes, unique)) is not None:
            return Answered(found)
        matcher, asked, given = self._asking(tags, attributes, place)
        return self._pipeline.awaited(matcher, asked, partial(_message, *given), unique=unique, channel=channel)

    async def _awaited_later(self, *message: Any, **given: Any) -> Any:
        """The same when the keys that may answer are laid out, in another thread: the loop's has others to answer."""
        import asyncio

        await asyncio.to_thread(lambda: self._reading.answering)
        return await self.awaited(*message, **given)

    async def _awaited_data(
        self, tags: Iterable[str], attributes: object, place: Place, columns: Sequence[str], channel: str | None
    ) -> list[dict[str, Any]]:
        snapshot, _, matcher = self._reading.answering
        some_columns(columns, self.schema())
        matcher, asked, given = self._asking(tags, attributes, place, matcher)
        row = partial(_message, *given)
        keys = await self._pipeline.awaited(matcher, asked, row, unique=False, channel=channel)
        return self._with_data(snapshot, keys, columns)

    def _entered(self, tags: Iterable[str], attributes: object, unique: bool) -> Any:
        """The keys of a message by the shortest way, as in `match`; `None` if it is too long for that."""
        packed_as = NO_ATTRIBUTES if attributes is None else self._packed(attributes)
        one = self._ready.one or self._reading.answering.matcher.one_query
        return None if one is None else one.enter(tags, unique, self._counts_at, packed_as)

    @_interrupted_plainly
    def explain(self, tags: Iterable[str], attributes: object, place: Place) -> list[Any]:
        """Matching sets with their keys."""
        snapshot, parts, matcher = self._reading.answering
        given = NO_ATTRIBUTES if attributes is None else self._packed(attributes)
        packed_at = packed_place(place.location, place.within, plane=self._options.plane)
        asked = alone(matcher.one_query, tags, given, packed_at)
        if asked is None:
            ids = ids_of(matcher, rows_of_messages([_message(tags, given, packed_at)]), 0, 1).values
        else:
            one, query = asked
            ids = one.set_ids(query)
        # In the order of the tables
        sets = explained(snapshot, np.sort(ids), [partial(_paths_of, part) for part in parts])
        if not place.is_given:
            return list(sets)
        # If a set asks for places near the client, or if clients must be within an area, only
        # some keys are answers
        return [(stored, some) for stored, every in sets if (some := self._keys_there(stored, every, place))]

    @_interrupted_plainly
    def reasons(self, tags: Iterable[str], attributes: Any, place: Place, key: object) -> Reasons:
        """Why the key is an answer to a message, or is not."""
        self._check_indexed()
        snapshot, checks, plane = self._reading.snapshot, KEY_CHECKS[self._key_type], self._options.plane
        value = checks.one(key, "key")
        if attributes is not None:
            packed(attributes)
            attributes = self.declared.message(attributes) if self.declared else attributes
        packed_place(place.location, place.within, plane=plane)
        keys = checks.many([value], "keys")
        (lon,), (lat,) = self.clients.where(keys)
        client = None if np.isnan(lon) else (float(lon), float(lat))
        asked = Asked.of(tags, attributes, place, client, plane=plane, declared=self.declared)
        return asked.reasons(value, sets_with(snapshot, keys))

    def _keys_there(self, stored: frozenset[str], keys: tuple[Any, ...], place: Place) -> tuple[Any, ...]:
        """Of the keys of a set, those whose clients are where the set, or the message, says that they must be."""
        # Of each of these, one must have the client
        areas = [[place.within]] if place.within is not None else []
        if points := checked_locations(place.location, plane=self._options.plane):
            areas += [[Circle(*point, metres) for point in points] for metres in nears_of(stored)]
        if not areas:
            return keys
        lons, lats = self.clients.where(KEY_CHECKS[self._key_type].many(list(keys), "keys"))
        there = ~np.isnan(lons)
        for some in areas:
            there &= np.any([area_has(area, lons, lats, plane=self._options.plane) for area in some], axis=0)
        return tuple(compress(keys, there))

    @_interrupted_plainly
    def move(self, clients: Any, lon: Any, lat: Any) -> None:
        self.check_open()
        keys = KEY_CHECKS[self._key_type].many(clients, "clients")
        self.clients.move(keys, *coordinates(lon, lat, len(keys), plane=self._options.plane))

    @_interrupted_plainly
    def save_positions(self) -> None:
        self.check_open()
        if self._files is None:
            raise InvalidValueError(
                "there is no folder to save positions to: this TagMatch is in memory only, or its index is read-only"
            )
        with self._saving:  # so that none replaces later ones
            version = self.clients.version
            assert self._location is not None
            self._location.has_index()
            save_positions(self._files, self.clients.positions(), plane=self._options.plane)
            self._positions_saved = version

    def _asking(self, tags: Iterable[str], attributes: object, place: Place, matcher: Matcher | None = None) -> Asking:
        """What answers one message, the message as that takes it alone, if it need not be in a packet, and in parts."""
        matcher, packed_at = self._reading.answering.matcher if matcher is None else matcher, NO_PLACE
        given = NO_ATTRIBUTES if attributes is None else self._packed(attributes)
        if place is not NOWHERE:
            packed_at = packed_place(place.location, place.within, plane=self._options.plane)
            if place.within is not None:
                matcher = self._within(matcher)
        return matcher, alone(matcher.one_query, tags, given, packed_at), (tags, given, packed_at)

    def _packed(self, attributes: Any) -> bytes:
        """The attributes of one message, as they are declared."""
        declared = self.declared
        return packed(declared.message(attributes) if declared else attributes)

    def _queries(self, given: Any, score: object = None) -> Queries:
        """Many messages, with attributes as they are declared; it warns if neither conditions nor a score need them."""
        asked, declared = queries_of(given, plane=self._options.plane), self.declared
        if asked is not given and score is None and asked.lack_tags and (note := self.note_on(asked)):
            warnings.warn(note, stacklevel=5)
        return Queries(as_declared(asked.chunks, declared)) if declared else asked

    def note_on(self, asked: Queries) -> str | None:
        """What to say of messages without tags and places if no condition asks for an attribute of theirs."""
        names = attributes_alone(asked.chunks)
        if not names or any(map(self.declared.__getitem__, names)):
            return None
        snapshot, parts, _ = self._reading.answering
        asked_for = self._asked_for
        if asked_for[0] is not snapshot or asked_for[1] != names:
            asked_for = self._asked_for = snapshot, names, not len(snapshot) or _ask_for(parts, names)
        if asked_for[2]:
            return None
        shown = ", ".join(repr(name[:60]) for name in names[:10])
        return (
            f"these messages have no tags, and attributes that no condition of the index asks for ({shown}): "
            "tags go into a column 'tags'"
        )

    def _within(self, matcher: Matcher) -> Matcher:
        """What answers for clients within areas."""
        return WithinAreas(matcher, self.clients, plane=self._options.plane)

    # -- contents ----------------------------------------------------------------------------------------------------

    def count(self) -> int:
        return len(self.snapshot)

    def every_set(self) -> Iterator[Any]:
        return every_set(self.snapshot)

    @_interrupted_plainly
    def contains(self, tags: object) -> bool:
        snapshot, query = self._reading.snapshot, tag_list(tags)
        wanted = [query]
        if Where in map(type, query):
            wanted = alternatives(query, None, plane=self._options.plane)
        elif any(map(is_reserved, query)):
            return False
        rows = rows_of_tags([sorted(set(row)) for row in wanted])
        sets = Lists(rows.offsets, np.arange(len(rows.tags), dtype=np.uint32))
        # No set has an `or` within
        return len(sets) == 1 and any(len(rows_with(segment, rows.tags, sets)) for segment in snapshot.segments)

    def get(self, key: object) -> Record[Any] | None:
        snapshot = self._reading.answering.snapshot
        of, readers = self._readers
        if of is not snapshot:
            readers = self._reading_keys_of(snapshot)
        return record_of(readers, KEY_CHECKS[self._key_type].one(key, "key"))

    @_interrupted_plainly
    def _reading_keys_of(self, snapshot: Snapshot) -> list[Reader]:
        self._check_indexed()
        readers = [*map(Reader, snapshot.segments)]
        self._readers = snapshot, readers
        return readers

    def has_key(self, key: object) -> bool:
        self._check_indexed()
        checks = KEY_CHECKS[self._key_type]
        return have_sets(self.snapshot, checks.many([checks.one(key, "key")], "keys"))

    def every_key(self) -> Iterator[Any]:
        self._check_indexed()
        return listed_keys(self.snapshot)

    def every_record(self) -> Iterator[Record[Any]]:
        self._check_indexed()
        return every_record(self.snapshot)

    def to_arrow(self) -> pa.Table:
        snapshot = self.snapshot
        return pa.Table.from_batches(pairs(snapshot), schema_of(snapshot))

    # -- the object --------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        snapshot, parts, matcher = self._reading.answering
        segments, options, about = snapshot.segments, snapshot.segments[0].options, matcher.about()
        return {
            "sets": len(snapshot),
            "keys": sum(segment.live_keys for segment in segments),
            "key_type": snapshot.key_type,
            "tags": count_tags(snapshot, threads=self._options.threads),
            "partitions": sum(len(segment.partitions) for segment in segments),
            "segments": len(segments),
            "deleted": sum(len(segment) - segment.live for segment in segments),
            "to_merge": len(to_merge(snapshot)),
            "with_conditions": by_path(part.filters for part in parts),
            "with_areas": sum(0 if part.areas is None else len(part.areas) for part in parts),
            "positions": len(self.clients),
            "staged": len(self._staging),
            "changes": self.changing.became._asdict(),
            "layout": options.layout,
            "max_partition_size": options.max_partition_size,
            "attributes": {each.name: str(each) for each in options.attributes},
            "strict": options.strict,
            "data": {name: text_of_type(kind) for name, kind in self.schema().items()},
            "plane": self._options.plane,
            "exact": self._options.exact or rules_of(options).compares_tags,
            "device": about.devices[0].partition(":")[0],
            "devices": list(about.devices),
            "device_notes": list(about.notes),
            "matched_by": about.matched_by,
            "threads": self._options.threads,
            "number": snapshot.number,
            "seed": segments[0].vocabulary.seed,
            "index_bytes": snapshot.nbytes + about.nbytes,
            "key_bytes": sum(segment.keys.nbytes for segment in segments),
            "directory_bytes": sum(segment.keys.directory_bytes for segment in segments),
            "path": None if self._location is None else str(self._location),
            "reload_error": self.changing.following.error,
            "lag": self.changing.lag,
            **self._pipeline.stats(),
        }

    @_interrupted_plainly
    def check(self) -> None:
        for segment in self.snapshot.segments:
            check_segment(segment, threads=self._options.threads)

    @_interrupted_plainly
    def save(self, path: object, keep_snapshots: int | None) -> None:
        keep = StagingOptions(keep_snapshots=keep_snapshots).keep_snapshots
        location_of(path, "path").save(self.snapshot, Commit(keep=keep))

    def close(self, *, drain: bool = True) -> None:
        self._close(drain=drain)
        self._warning()

    def _close(self, *, drain: bool = True) -> None:
        self.changing.end()
        self._staging.close()
        self._pipeline.close(drain=drain)
        self._finalizer.detach()

    def check_open(self) -> None:
        _ = self.changing.held

    def leave(self, *, failed: bool) -> None:
        self._close()
        if not failed:
            self._warning()
        else:  # the error tells that the work was not finished
            self._warning.detach()

    def described(self) -> str:
        try:
            snapshot = self._reading.held.snapshot
        except ClosedError:
            return "<TagMatch, closed>"
        where = "in memory" if self._location is None else f"at {str(self._location)!r}"
        staged = f", {counted(len(self._staging), 'staged change')}" if len(self._staging) else ""
        return (
            f"<TagMatch {where}, {counted(len(snapshot), 'set')}{staged}, layout {self.changing.layout_options.layout}>"
        )


def _only(whole: weakref.ref[LocalEngine], expression: object) -> LocalEngine:
    """What reads keys alone whose data satisfies an expression; errors are those of `DataTest`."""
    engine = whole()
    assert engine is not None
    own = copy(engine)
    test = DataTest(expression, engine.schema())
    own._reading = Restricted(engine._reading, test, engine._options, engine.clients)
    own._ready = own._reading.ready
    own._rankings = Rankings()
    own._restrict()
    return own


def _check_size(answers: Lists) -> None:
    if len(answers.values) > MAX_KEYS:
        raise ResultTooLargeError(
            f"{len(answers)} queries have {len(answers.values)} keys, more than one Arrow list array can hold "
            f"({MAX_KEYS}); ask with fewer queries at a time"
        )


def _ask_for(parts: Iterable[Part], names: list[str]) -> bool:
    """Whether a condition of a set asks for one of these attributes, by itself or within another, as in `a < b`."""
    for part in parts:
        filters, tags = part.filters, from_strings(part.segment.vocabulary.tags)
        if filters and any(number != UNKNOWN for number in filters.attributes.names.numbers_of(names)):
            return True
        conditions = tags.filter(pc.starts_with(tags, RESERVED))
        if any(pc.any(pc.match_substring(conditions, name)).as_py() for name in names):
            return True
    return False


def _message(tags: Iterable[str], attributes: bytes, place: bytes) -> Message:
    return Message(tag_list(tags), attributes, place)


def _paths_of(part: Part, rows: Any) -> list[str | None]:
    """How messages get to the sets in these rows; `None` for those without conditions."""
    paths: list[str | None] = list(paths_of(part.filters, rows))
    if part.areas is not None:
        for place in np.flatnonzero(part.areas.among(rows)):
            paths[place] = "areas"
    return paths


def _end_staging(staging: Staging, location: Repository | None) -> None:
    staging.close()
    if count := staging.lost_at_the_end:
        where = "" if location is None else f" of the index {location}"
        warnings.warn(
            f"{count} staged {'change' if count == 1 else 'changes'}{where} {'is' if count == 1 else 'are'} lost; "
            "call consolidate() before closing",
            StagedChangesWarning,
            stacklevel=5,
        )
