"""What users call: `Index` has each method of an index, and its text, once.

Nothing here imports Arrow, NumPy or Numba, so that `import tagmatch` and the help of commands come at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, get_args, overload

from tagmatch.model.errors import InvalidTypeError, InvalidValueError, TagMatchError
from tagmatch.model.options import Missing, Wanted
from tagmatch.model.where.areas import NOWHERE, Box, Circle, Place
from tagmatch.notebook import Explanation, Stats, overview

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Iterator
    from concurrent.futures import Future
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Literal, Self, TypedDict, Unpack

    import pyarrow as pa
    from typing_extensions import TypeVar as TypeVarWithDefault

    from tagmatch.model.change_counts import ChangeCounts
    from tagmatch.model.records import Record
    from tagmatch.model.tables import Snapshot
    from tagmatch.model.where.areas import AreaForm, Location
    from tagmatch.reasons import Reasons

    #: Type of keys
    K = TypeVarWithDefault("K", int, str, default=int)

    class AskOptions(TypedDict, total=False):
        """Keyword arguments of `Index.match`."""

        location: Location | None
        within: AreaForm | None
        only: str | None
        limit: int | None
        order_by: str | None
        score: str | None

    class AwaitOptions(AskOptions, total=False):
        """Keyword arguments of `Index.amatch`."""

        channel: str | None

    class SubmitOptions(TypedDict, total=False):
        """Keyword arguments of `Index.submit`."""

        location: Location | None
        within: AreaForm | None
        channel: str | None
        only: str | None
        block: bool
        timeout: float | None
else:
    K = TypeVar("K", int, str)


class _Engine(Protocol):
    """What does the work of an `Index`: each method what the index's own does that calls it, or has its name.

    `tagmatch.engine` does it in this process, `tagmatch.broker.client` has a service do it.
    """

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
    ) -> int: ...
    # Columns `tags`, `key` and others of a table of subscriptions
    def stage(self, columns: Mapping[str, Any], *, removed: bool = False, must_exist: bool = False) -> int: ...
    def put_one(
        self, key: object, tags: object, *, where: object, area: object, expires: object, data: object
    ) -> int: ...
    def put_table(self, table: Any, *, match_all: bool) -> int: ...
    def delete(self, keys: object, *, must_exist: bool, is_single: bool) -> int: ...
    def consolidate(self, *, full: bool) -> ChangeCounts: ...
    def reload(self) -> bool: ...
    def match(self, tags: Iterable[str], attributes: object, place: Place, unique: bool) -> Any: ...
    def number(self, tags: Iterable[str], attributes: object, place: Place, *, wanted: Wanted) -> int: ...
    # Keys of each query, its number, or whether there are any
    def match_many(
        self, queries: Any, *, wanted: Wanted, channel: str | None, waited: float, columns: Sequence[str] | None = None
    ) -> Any: ...
    def match_data(
        self, tags: Iterable[str], attributes: object, place: Place, columns: Sequence[str]
    ) -> list[dict[str, Any]]: ...
    # One message as `match_many` and `best` take many
    def one_query(self, tags: Iterable[str], attributes: object, place: Place) -> Any: ...
    def submit(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        *,
        unique: bool,
        timeout: float | None,
        channel: str | None,
    ) -> Future[Any]: ...
    def awaited(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        *,
        unique: bool,
        channel: str | None,
        columns: Sequence[str] | None = None,
    ) -> Awaitable[Any]: ...
    # What reads keys alone whose data satisfies an expression
    def only(self, expression: object) -> _Engine: ...
    def explain(
        self, tags: Iterable[str], attributes: object, place: Place
    ) -> Iterable[tuple[frozenset[str], Any]]: ...
    def reasons(self, tags: Iterable[str], attributes: Any, place: Place, key: object) -> Reasons: ...
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
    ) -> pa.ListArray: ...
    def counts_by(
        self, queries: Any, column: object, *, unique: bool, channel: str | None, waited: float
    ) -> pa.ListArray: ...
    def move(self, clients: Any, lon: Any, lat: Any) -> None: ...
    def save_positions(self) -> None: ...
    def count(self) -> int: ...
    def every_set(self) -> Iterator[Any]: ...
    def contains(self, tags: object) -> bool: ...
    def get(self, key: object) -> Record[Any] | None: ...
    def has_key(self, key: object) -> bool: ...
    def every_key(self) -> Iterator[Any]: ...
    def every_record(self) -> Iterator[Record[Any]]: ...
    def to_arrow(self) -> pa.Table: ...
    @property
    def snapshot(self) -> Snapshot: ...
    def stats(self) -> dict[str, Any]: ...
    def check(self) -> None: ...
    def save(self, path: object, keep_snapshots: int | None) -> None: ...
    def close(self, *, drain: bool = True) -> None: ...
    def check_open(self) -> None: ...
    def leave(self, *, failed: bool) -> None: ...
    def described(self) -> str: ...


class Records(Mapping[K, "Record[K]"]):
    """The records of an index by key, as `get` gives them: of keys that have sets, not counting staged changes."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def __getitem__(self, key: K) -> Record[K]:
        found = self._engine.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self._engine.has_key(key)

    def __iter__(self) -> Iterator[K]:
        return self._engine.every_key()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def values(self) -> ValuesView[Record[K]]:
        """The records, read some at a time."""
        return _Values(self)

    def _every_record(self) -> Iterator[Record[K]]:
        return self._engine.every_record()


class _Values(ValuesView[Any]):
    _mapping: Records[Any]

    def __iter__(self) -> Iterator[Any]:
        return self._mapping._every_record()


class Index(Generic[K]):
    """Tag sets with keys, and the keys of all sets that are contained in a query.

    `TagMatch` is an index that the program has itself, and `connect` gives one that a service has. All methods may be
    called from many threads.
    """

    _engine: _Engine

    # -- changes -----------------------------------------------------------------------------------------------------

    def add_set(
        self,
        tags: Iterable[str],
        key: K,
        *,
        where: str | None = None,
        area: AreaForm | None = None,
        expires: datetime | timedelta | None = None,
    ) -> int:
        """Stage the addition of `key` to the set `tags`, with a condition if there is `where` or `area`.

        Parameters
        ----------
        tags : iterable of str
            None may begin as constraints are stored: with U+0000 and `+`, `-` or `=`.
        key : int or str
            What queries that contain the set get: an integer in [0, 2**64), or a `str` if the index has such keys.
        where : str, optional
            What the attributes of a query must be as well, such as `price < 10 and city in {"Rome", "Milan"}`. `in`
            asks for one of the values; `tags {"new", "sale"}`, as `tags` here, for all of these tags. An expression
            with `or` is stored as several sets, one for each alternative.
        area : Circle, Box, Near, Polygon, Corridor, dict or str, optional
            Where a query must be as well; `within circle(…)`, `within box(…)` and `within near(…)` of `where` say the
            same. A text is what follows `within` there, or a polygon as GeoJSON; `Polygon` says what else may be one. A
            dict has the fields of an area, such as `{"lon": 9.19, "lat": 45.46, "metres": 5000}`, or is GeoJSON.
        expires : datetime or timedelta, optional
            When the key stops being an answer of this set: a `datetime` with a time zone, or a `timedelta` from now. A
            time that is past has the addition remove the key. The time replaces one that the key had; without it, the
            key never expires, also if it had a time.

        Returns
        -------
        int
            How many changes are staged: one, or as many as `where` has alternatives.

        Raises
        ------
        TypeError, ValueError
            `tags` is not an iterable of `str`, or `key` not an integer in [0, 2**64); or no `str`, where the index has
            strings as keys; or `expires` is a `datetime` without a time zone, or a `timedelta` that is not positive; or
            `area` is not an area, or out of range.
        FilterError
            There is a mistake in `where`; the message names the column, and what it expected.
            Or an area in it is out of range.
        InvalidValueError
            The index is on a store, or was opened at a snapshot by its number: then it is read-only.
        IndexLockedError
            Another program, or another object of this one, has changes staged for the index.
        TagMatchError
            The change cannot be logged, and is not staged; where `durability` is `fsync` and the message says so, it is
            staged, but may not last.

        Examples
        --------
        >>> from datetime import timedelta
        >>> tm = TagMatch()
        >>> tm.add_set(["cat", "fr"], 7, expires=timedelta(days=30))
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.match(["cat", "fr"])
        [7]

        A set with an area, and its stored form:

        >>> from tagmatch import Circle
        >>> tm.add_set(["taxi"], 8, area=Circle(9.19, 45.46, 5000))
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.to_arrow()["where"].drop_null().to_pylist()
        ['within circle(9.19, 45.46, 5000)']
        """
        return self._engine.stage_one(tags, key, where=where, area=area, expires=expires)

    def remove_set(
        self,
        tags: Iterable[str],
        key: K,
        *,
        where: str | None = None,
        area: AreaForm | None = None,
        missing: Missing = "ignore",
    ) -> int:
        """Stage the removal of `key` from the set `tags`; a set without keys is no longer stored.

        A set that was added with `where` is removed with an expression that has the same alternatives, and one that was
        added with `area` with an equal one, or with such an expression.

        Parameters
        ----------
        tags, key, where, area
            As `add_set`.
        missing : {"ignore", "error"}
            The outcome of a removal of a set that is neither stored nor staged at this time: it changes nothing, and
            `consolidate` counts it as `missing`; or it is an error.

        Returns
        -------
        int
            As `add_set`.

        Raises
        ------
        TypeError, ValueError
            As `add_set`.
        NotStoredError
            With `missing="error"`: the set does not have the key. Nothing is staged then.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["cat"]], [7, 8])
        2
        >>> tm.remove_set(["cat"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=1, missing=0)
        >>> tm.match(["cat"])
        [8]
        """
        must_exist = _is_error(missing)
        return self._engine.stage_one(tags, key, where=where, area=area, removed=True, must_exist=must_exist)

    def add_sets(self, tags: Any, keys: Any, *, where: Any = None, area: Any = None, expires: Any = None) -> int:
        """Stage the addition of many sets, each with one key.

        Parameters
        ----------
        tags
            Arrow array of lists of strings (any list and string type, chunked or not), or a sequence of iterables of
            `str`. Strings of a dictionary, as `pyarrow.compute.dictionary_encode` makes it, are looked up once each,
            if it has no more of them than there are tags.
        keys
            As many integers, or strings where the index has such keys: Arrow or NumPy array, or a sequence.
        where : optional
            One expression for all, as for `add_set`; or as many, with nulls for sets without: an Arrow array of
            strings, or a sequence. Each different one is read once.
        area : optional
            One for all, as for `add_set`; or as many, with nulls for sets without: an Arrow array of structs, as
            `add_subscriptions` describes them, of texts or of WKB, or a sequence.
        expires : optional
            One `datetime` or `timedelta` for all, as for `add_set`; or as many times, with nulls for keys that never
            expire: an Arrow array of timestamps with a time zone, a NumPy array of `datetime64`, which are UTC, or a
            sequence. Times are kept in microseconds.

        Returns
        -------
        int
            How many changes are staged, as `add_set`.

        Raises
        ------
        TypeError, ValueError
            As `add_set`, naming the row, or the lengths differ. Nothing is staged then.

        Examples
        --------
        >>> import pyarrow as pa
        >>> tm = TagMatch()
        >>> tm.add_sets(pa.array([["cat", "fr"], ["cat"]]), [7, 8], where=["price < 10", None])
        2
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> sorted(tm.match(["cat", "fr"], {"price": 9})), tm.match(["cat", "fr"])
        ([7, 8], [8])
        """
        return self._engine.stage({"tags": tags, "key": keys, "where": where, "area": area, "expires": expires})

    def add_subscriptions(self, table: Any, *, match_all: bool = False) -> int:
        """Stage the addition of the rows of a table: `add_sets` with its columns, as `to_arrow` has them.

        Parameters
        ----------
        table
            An Arrow table or record batch, or a DataFrame of pandas, polars or DuckDB: any with Arrow's C stream.
            Column `key`, and those of `tags`, `where`, `constraints`, `area` and `expires` that are needed. A query
            matches a row that has all of its tags, and where its expression and all of its constraints hold, and whose
            area it is in; several rows of a key are alternatives. Without a column `tags`, or where that is null, a row
            has no tags, but must have a value in `where`, `constraints` or `area`.

            `constraints` is for many subscriptions, as nothing is parsed: lists of structs, null or empty if there
            are none. Each has the fields `attr`, the name of an attribute, `op`, and those that the operators need:

            - those of one operand, such as `=`, `<` and `prefix`: it is in `value`, or in one of `int`, `float`, `text`
              and `bool`, and the others are null: fields have a type, except for unions.
            - `between`: the ends are in one of these and in `upper`, or both in `values`.
            - those of a list of operands, such as `in`: it is in `values`.
            - `exists`, `not exists`: there is no operand.

            Operands are bools, integers, floats, decimals, strings, dates or timestamps with a time zone, dense or
            sparse unions of these, or structs of them with one field that is not null, which Parquet and Spark have.
            Strings in fields `date`, `timestamp`, `decimal`, `version` and `ip` are values of these types.
            Operators mean what they mean in `where`; `not exists` is `not exists(…)`.

            `area` is for many areas: structs, null for no area, with the fields that the kinds need, integers
            or floats, others null or not there: `lon`, `lat` and `metres` of a circle, `west`, `south`, `east` and
            `north` of a box, `metres` of `near`. A field `kind` says which it is: `circle`, `box` or `near`. It
            can be left out, except for `near` if the structs have fields `lon` or `lat`. Polygons and corridors,
            and any other area, may be texts, as in `add_set`; polygons also WKB, structs with `type` and `coordinates`
            of GeoJSON, or lists of rings of GeoArrow.
        match_all : bool
            Whether a row with nothing that it asks for is meant to match every message. Default: it is an error, unless
            its `tags` are an empty list.

        Returns
        -------
        int
            How many changes are staged, as `add_set`.

        Raises
        ------
        TypeError, ValueError
            As `add_sets`, naming column and row, and the place of the constraint there; or there is another column, or
            a row that asks for nothing. Nothing is staged then.

        Examples
        --------
        >>> import pyarrow as pa
        >>> tm = TagMatch()
        >>> tm.add_subscriptions(pa.table({"key": [1, 2], "where": ["price < 10", "price < 100"]}))
        2
        >>> cheap = {"attr": "price", "op": "<", "value": 10}
        >>> in_a_city = {"attr": "city", "op": "in", "values": ["Rome", "Milan"]}
        >>> ibm = {"attr": "name", "op": "prefix", "text": "IB"}
        >>> tm.add_subscriptions(pa.table({"key": [3, 4], "constraints": [[cheap, in_a_city], [ibm]]}))
        2
        >>> tm.consolidate()
        ChangeCounts(added=4, already_there=0, removed=0, missing=0)
        >>> sorted(tm.match([], {"price": 11, "name": "IBM"}))
        [2, 4]
        >>> sorted(tm.match([], {"price": 9.5, "city": "Rome"}))
        [1, 2, 3]
        """
        from tagmatch.model.input.subscriptions import columns_of

        return self._engine.stage(columns_of(table, match_all=match_all))

    def remove_subscriptions(self, table: Any, *, match_all: bool = False, missing: Missing = "ignore") -> int:
        """Stage the removal of what `add_subscriptions` adds; errors are as there. `expires` is left aside.

        `missing` means the same as for `remove_set`.

        Returns
        -------
        int
            How many changes are staged, as `add_set`.

        Raises
        ------
        TypeError, ValueError
            As `add_subscriptions`.
        NotStoredError
            With `missing="error"`: a set does not have its key; the message names both. Nothing is staged then.

        Examples
        --------
        >>> import pyarrow as pa
        >>> table = pa.table({"key": [1, 2], "tags": [["flat"], ["flat"]], "where": ["price < 900", None]})
        >>> tm = TagMatch()
        >>> tm.add_subscriptions(table)
        2
        >>> tm.remove_subscriptions(table.slice(0, 1))
        1
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=1, missing=0)
        >>> tm.match(["flat"], {"price": 850})
        [2]
        """
        from tagmatch.model.input.subscriptions import columns_of

        columns = columns_of(table, match_all=match_all)
        columns.pop("expires", None)
        return self._engine.stage(columns, removed=True, must_exist=_is_error(missing))

    def remove_sets(
        self, tags: Any, keys: Any, *, where: Any = None, area: Any = None, missing: Missing = "ignore"
    ) -> int:
        """Stage the removal of many (set, key) pairs; arguments as `add_sets` and `remove_set`, so are errors.

        Returns
        -------
        int
            How many changes are staged, as `add_set`.

        Raises
        ------
        TypeError, ValueError
            As `add_sets`.
        NotStoredError
            With `missing="error"`: a set does not have its key; the message names both. Nothing is staged then.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["dog"], ["cat"]], [7, 7, 8])
        3
        >>> tm.remove_sets([["cat"], ["dog"]], [7, 7])
        2
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=2, missing=0)
        >>> dict(tm)
        {frozenset({'cat'}): (8,)}
        """
        columns = {"tags": tags, "key": keys, "where": where, "area": area}
        return self._engine.stage(columns, removed=True, must_exist=_is_error(missing))

    def put(
        self,
        key: K,
        tags: Iterable[str] | None = None,
        *,
        where: str | None = None,
        area: AreaForm | None = None,
        expires: datetime | timedelta | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> int:
        """Stage that a key has this subscription and no other: its earlier sets go, without their text being given.

        What is stored already stays as it is, so that to put the same again, or what means the same, adds and removes
        nothing. The key's record, which `get` gives, is replaced.

        Parameters
        ----------
        key : int or str
            As for `add_set`.
        tags, where, area, expires
            As for `add_set`. Without `tags` there must be `where` or `area`; give `tags=[]` for a key that every
            message gets.
        data : dict, optional
            Values of the columns of data that the index has (`data` of `TagMatch`), by name. Columns that are not
            named, or with `None`, have no value. Queries do not look at them.

        Returns
        -------
        int
            How many changes are staged: one, or as many as `where` has alternatives.

        Raises
        ------
        TypeError, ValueError, FilterError, InvalidValueError, IndexLockedError, TagMatchError
            As `add_set`; or a column of data is unknown or takes no such values. Nothing is staged then.

        Examples
        --------
        >>> tm = TagMatch(data={"email": "string"})
        >>> tm.put(7, ["cat"], where="price < 10", data={"email": "ana@example.org"})
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.put(7, ["cat"], where="price < 20", data={"email": "ana@example.org"})
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=1, missing=0)
        >>> tm.get(7).where
        'price < 20'
        """
        return self._engine.put_one(key, tags, where=where, area=area, expires=expires, data=data)

    def put_many(self, table: Any, *, match_all: bool = False) -> int:
        """Stage that each key of a table has the subscriptions of its rows there, and no others.

        Parameters
        ----------
        table
            As for `add_subscriptions`, with a column more for each column of data that is given. Several rows of a key
            are alternatives: they have the data of the first.
        match_all : bool
            As for `add_subscriptions`.

        Returns
        -------
        int
            How many changes are staged, as `put`.

        Raises
        ------
        TypeError, ValueError
            As `add_subscriptions`, or a column of data takes no such values. Nothing is staged then.

        Examples
        --------
        >>> import pyarrow as pa
        >>> tm = TagMatch(data={"email": "string"})
        >>> table = pa.table({"key": [7, 8], "where": ["price < 10", "new = true"], "email": ["ana@x.org", None]})
        >>> tm.put_many(table)
        2
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> tm.get(7).data, tm.get(8).data
        ({'email': 'ana@x.org'}, {})
        """
        return self._engine.put_table(table, match_all=match_all)

    def delete(self, key: K, *, missing: Missing = "ignore") -> int:
        """Stage that a key has no sets any more, and no record.

        Parameters
        ----------
        key : int or str
            As for `add_set`.
        missing : {"ignore", "error"}
            What happens to a key that has no sets at this time, stored or staged: `consolidate` counts it as
            `missing`; or it is an error.

        Returns
        -------
        int
            How many changes are staged: 1.

        Raises
        ------
        TypeError, ValueError
            As `add_set`.
        NotStoredError
            With `missing="error"`: the key has no sets. Nothing is staged then.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["dog"]], [7, 7])
        2
        >>> tm.delete(7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=2, missing=0)
        >>> 7 in tm.records
        False
        """
        return self._engine.delete(key, must_exist=_is_error(missing), is_single=True)

    def delete_many(self, keys: Any, *, missing: Missing = "ignore") -> int:
        """Stage that many keys have no sets any more; `keys` as for `add_sets`, the rest as `delete`.

        Returns
        -------
        int
            How many changes are staged: as many as there are keys.

        Raises
        ------
        TypeError, ValueError
            As `add_sets`.
        NotStoredError
            With `missing="error"`: a key has no sets; the message names it. Nothing is staged then.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["dog"], ["dog"]], [7, 8, 9])
        3
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> tm.delete_many([7, 8, 10])
        3
        >>> tm.consolidate()
        ChangeCounts(added=0, already_there=0, removed=2, missing=1)
        >>> list(tm.records)
        [9]
        """
        return self._engine.delete(keys, must_exist=_is_error(missing), is_single=False)

    def consolidate(self, *, full: bool = False) -> ChangeCounts:
        """Make all changes staged so far take effect; save the new snapshot if there is a path.

        What this takes follows the changes: changed sets go to a new segment of the index, and other segments stay as
        they are. A thread in the background merges segments and keeps them few. When this returns, a saved snapshot
        survives a crash of the machine. Keys that have expired are dropped. Without changes, and if no key has expired,
        nothing is written once the index is there.

        Parameters
        ----------
        full : bool
            Lay all sets out anew, in one segment, as if they came together: it answers fastest, and takes longest.

        Returns
        -------
        ChangeCounts
            What happened to the changes: how many keys were `added`, `already_there`, `removed` or `missing`.
            `stats()["changes"]` has the sums of this object.

        Raises
        ------
        IndexChangedError
            Another program has saved to the index since this object read or saved it; `reload` takes that over.
        TagMatchError
            The snapshot cannot be saved. In both cases the changes stay staged and the old snapshot goes on answering.
        InvalidValueError
            The index is read-only, and was opened in another layout than its own: that cannot be saved there.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.match(["cat"])  # staged, not yet in effect
        []
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.match(["cat"])
        [7]
        """
        return self._engine.consolidate(full=full)

    def reload(self) -> bool:
        """Take over the snapshot that the index at this object's path has now; returns whether it is another one.

        Staged changes stay staged, and come on top of it at the next `consolidate`. Where it is the same one, only the
        manifest is read, so that a server may ask often. From a store, a newer one is copied first.

        Returns
        -------
        bool
            Whether the snapshot is another one than before.

        Raises
        ------
        InvalidValueError
            This object has no path, or was opened at a snapshot by its number.
        IndexNotFoundError, IndexCorruptError, IndexVersionError
            As `open`.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "animals.index")
        >>> with TagMatch(folder) as writer, TagMatch(folder) as reader:
        ...     writer.add_set(["cat"], 7)
        ...     writer.consolidate()
        ...     reader.match(["cat"]), reader.reload(), reader.match(["cat"]), reader.reload()
        1
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        ([], True, [7], False)
        """
        return self._engine.reload()

    # -- queries -----------------------------------------------------------------------------------------------------

    @overload
    def match(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        columns: None = None,
        **options: Unpack[AskOptions],
    ) -> list[K]: ...

    @overload
    def match(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        columns: Sequence[str],
        **options: Unpack[AskOptions],
    ) -> list[dict[str, Any]]: ...

    def match(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        columns: Sequence[str] | None = None,
        only: str | None = None,
        limit: int | None = None,
        order_by: str | None = None,
        score: str | None = None,
    ) -> list[K] | list[dict[str, Any]]:
        """Keys of all stored sets contained in `tags`, in no particular order; a key once per set that carries it.

        On the CPU, the calling thread does it all, by one call of a kernel, but where `location` or `within` is given.

        Parameters
        ----------
        tags : iterable of str, optional
            The tags of the message. Default: none.
        attributes : mapping, optional
            What the conditions of sets (`where`) are about, by name: a `bool`, `int`, `float` or `str`, also of NumPy,
            a `Decimal`, `datetime` with a zone, `date`, `Version`, `IPv4Address` or `IPv6Address`, several of these in
            a list, tuple or set, or `None` for no value.
        location : tuple of two numbers, or list of such tuples, optional
            Where the message is: longitude and latitude in degrees, or x and y on the plane; or several places. A place
            may be a dict with `lon` and `lat` (`x` and `y`), too. A set
            with an area is satisfied if that has one of them; a `Near` if the client, whose key the set has, is near
            one. A negated area must have none of them. Without a location, as with an empty list, no area is
            satisfied, and every negated one is.
        within : Circle, Box, Polygon, Corridor, dict or str, optional
            Where the clients must be that the message is for: only keys are given whose client is within this area
            (`move` says where clients are). It has the forms of `area` of `add_set`. Without a `location`, a `Near`
            asks for no more.
        columns : sequence of str, optional
            Columns of data (`put`) that are wanted: each answer is then a dict of these and of `key`, with `None` where
            the key has no value.
        only : str, optional
            An expression as `where` has it, about columns of data instead of attributes, such as
            `tenant = "acme" and channel in {"mail"}`: only keys are given whose data satisfies it. The first call with
            an expression lays their sets out, if there are many others; later ones are as fast as an index that
            has only these keys. The 64 expressions that were asked for last are kept ready, and follow changes.
        limit, order_by, score : optional
            As for `match_best`: at most `limit` keys, up to 10,000, each once, the best first by `order_by` or `score`.

        Returns
        -------
        list of int or str
            The keys; with `columns`, dicts.

        Raises
        ------
        TypeError, ValueError
            `tags` is not an iterable of `str`, or an attribute has a value of another type; or `location` or `within`
            is of another type, not finite, or out of range; or there is no such column. `only` names a column that
            there is not, or compares one with values of a type that it never has.
        FilterError
            There is a mistake in `only`; the message names the place in it, and the text that was expected there.

        Examples
        --------
        >>> from tagmatch import Circle, Near
        >>> tm = TagMatch()
        >>> tm.add_set(["flat"], 1, area=Circle(9.19, 45.46, 5000))
        1
        >>> tm.add_set(["flat"], 2, area=Near(1000))
        1
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> tm.move([2], 9.2, 45.47)
        >>> sorted(tm.match(["flat"], location=(9.19, 45.47)))
        [1, 2]
        >>> tm.match(["flat"], within=Circle(9.2, 45.47, 10))
        [2]

        With data:

        >>> tm = TagMatch(data={"email": "string"})
        >>> tm.put(7, ["flat"], data={"email": "ana@example.org"})
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.match(["flat", "new"], columns=["email"])
        [{'key': 7, 'email': 'ana@example.org'}]
        >>> tm.match(["flat", "new"], only='email suffix "@example.com"')
        []
        >>> tm.match(["flat", "new"], limit=1, order_by="email desc")
        [7]
        """
        if not (limit is order_by is score is None):
            return self._best_of_one(tags, attributes, _place(location, within), only, columns, limit, order_by, score)
        if columns is not None:
            return self._of(only).match_data(tags, attributes, _place(location, within), _names(columns))
        place = NOWHERE if location is None and within is None else _place(location, within)
        engine = self._engine
        if only is not None:
            find = engine.only  # Python reads a slot sooner than it calls one
            try:  # as `_of`, by one call fewer
                engine = find(only)
            except TypeError:
                engine = self._of(only)
        found: list[K] = engine.match(tags, attributes, place, False)
        return found

    def match_unique(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        only: str | None = None,
    ) -> set[K]:
        """Keys of all stored sets contained in `tags`; arguments and errors as `match`.

        Returns
        -------
        set of int or str
            The keys.

        Raises
        ------
        TypeError, ValueError, FilterError
            As `match`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["fr"]], [7, 7])
        2
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> tm.match(["cat", "fr"]), tm.match_unique(["cat", "fr"])
        ([7, 7], {7})
        """
        place = NOWHERE if location is None and within is None else _place(location, within)
        engine = self._engine
        if only is not None:
            find = engine.only  # Python reads a slot sooner than it calls one
            try:  # as `_of`, by one call fewer
                engine = find(only)
            except TypeError:
                engine = self._of(only)
        found: set[K] = engine.match(tags, attributes, place, True)
        return found

    def match_many(
        self,
        queries: Any,
        *,
        unique: bool = False,
        channel: str | None = None,
        waited: float = 0.0,
        columns: Sequence[str] | None = None,
        only: str | None = None,
    ) -> pa.ListArray:
        """Answers to many queries.

        Parameters
        ----------
        queries
            As the `tags` of `add_sets`: one row per query. Or a table as `add_subscriptions` takes it, with a column
            `tags`, which may be missing, and a column for each attribute, by its name: bools, integers, floats, strings
            (also in a dictionary), or lists of these for several values; a null is no value. A column
            of maps from names to such values has an attribute for each entry: faster for many names, of
            which a message has few. So has a column `attributes` of structs for each field. A column `location` of
            structs with `lon` and `lat` (`x` and `y` on the plane), or of lists of two numbers, says where messages
            are, or one of lists of these, if they have several places, and a column `within` as `area` of
            `add_subscriptions`, which clients they are for. `id` is left aside. A name that is nearly one of these
            five, such as `tag` or `Location`, is an error; an attribute of that name goes into `attributes`.
        unique : bool
            Give each key of a query once (ascending), as `match_unique` does.
        channel : str, optional
            Name of a channel, whose deadline holds for all answers together. The queries are matched some at a time,
            so that threads can turn to more urgent ones in between.
        waited : float
            Seconds that have passed of the channel's deadline, where the queries were handed in earlier.
        columns : sequence of str, optional
            Columns of data (`put`) that are wanted with the keys. Over a connection, a dictionary's are strings.
        only : str, optional
            As for `match`: which keys, by their data. Errors are the same.

        Returns
        -------
        pyarrow.ListArray of uint64, or of large_string where keys are strings
            The keys of each query, in the queries' order; with `columns`, structs of `key` and of these.

        Raises
        ------
        TypeError, ValueError
            As `add_sets`.
        ResultTooLargeError
            All answers together have 2**31 keys or more.
        DeadlineMissed, Overloaded
            The channel's deadline cannot be kept, as for `submit`. There is no answer to any of the queries then.

        Examples
        --------
        >>> import pyarrow as pa
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.add_set(["dog"], 8, where="age < 2")
        1
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> tm.match_many([["cat", "dog"], ["cow"]]).to_pylist()
        [[7], []]
        >>> tm.match_many(pa.table({"tags": [["dog"], ["dog"]], "age": [1, 3]})).to_pylist()
        [[8], []]
        """
        wanted = Wanted.unique if unique else Wanted.keys
        names = None if columns is None else _names(columns)
        found: pa.ListArray = self._of(only).match_many(
            queries, wanted=wanted, channel=channel, waited=waited, columns=names
        )
        return found

    def match_count(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        unique: bool = False,
        only: str | None = None,
    ) -> int:
        """How many keys `match` gives, without making many of them; or `match_unique`, if `unique`.

        Other arguments, and errors, are as those of `match`.

        Returns
        -------
        int
            The number of keys.

        Raises
        ------
        TypeError, ValueError, FilterError
            As `match`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["fr"], ["dog"]], [7, 7, 8])
        3
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> tm.match_count(["cat", "fr"]), tm.match_count(["cat", "fr"], unique=True)
        (2, 1)
        """
        place = _place(location, within)
        if unique:
            return len(self._of(only).match(tags, attributes, place, unique=True))
        return self._of(only).number(tags, attributes, place, wanted=Wanted.counts)

    def match_exists(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        only: str | None = None,
    ) -> bool:
        """Whether `match` gives a key; arguments and errors are the same.

        Returns
        -------
        bool
            Whether there is a key.

        Raises
        ------
        TypeError, ValueError, FilterError
            As `match`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.match_exists(["cat", "fr"]), tm.match_exists(["dog"])
        (True, False)
        """
        return bool(self._of(only).number(tags, attributes, _place(location, within), wanted=Wanted.exists))

    def match_counts(
        self,
        queries: Any,
        *,
        unique: bool = False,
        channel: str | None = None,
        waited: float = 0.0,
        only: str | None = None,
        count_by: str | None = None,
    ) -> Any:
        """How many keys `match_many` gives to each query, without making them, unless `unique`.

        Other arguments and errors are the same. All queries together may have as many keys as there are, unless
        `unique`. By `count_by`, a column of `data`, a query has a count for each value that its keys have there, and
        for null if some have none. Keys of a snapshot are grouped when a column is first asked for.

        Returns
        -------
        pyarrow.Array of uint64, or pyarrow.ListArray of structs
            By `count_by`, the structs have a `value` and a `count`, in the order of values, null last.

        Raises
        ------
        ValueError
            There is no column `count_by`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], ["fr"], ["dog"]], [7, 7, 8])
        3
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> tm.match_counts([["cat", "fr"], ["cow"]]).to_pylist()
        [2, 0]
        >>> tm.match_counts([["cat", "fr"], ["cow"]], unique=True).to_pylist()
        [1, 0]
        >>> tm = TagMatch(data={"segment": "string"})
        >>> for key, segment in ((7, "new"), (8, "old"), (9, "new")):
        ...     staged = tm.put(key, ["cat"], data={"segment": segment})
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> tm.match_counts([["cat", "fr"]], count_by="segment").to_pylist()
        [[{'value': 'new', 'count': 2}, {'value': 'old', 'count': 1}]]
        """
        if count_by is not None:
            return self._of(only).counts_by(queries, count_by, unique=unique, channel=channel, waited=waited)
        wanted = Wanted.unique_counts if unique else Wanted.counts
        found: pa.UInt64Array = self._of(only).match_many(queries, wanted=wanted, channel=channel, waited=waited)
        return found

    def match_exists_many(
        self, queries: Any, *, channel: str | None = None, waited: float = 0.0, only: str | None = None
    ) -> pa.BooleanArray:
        """Whether `match_many` gives a key to each query; arguments and errors are the same.

        Returns
        -------
        pyarrow.Array of bool

        Raises
        ------
        TypeError, ValueError, FilterError, DeadlineMissed, Overloaded
            As `match_many`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.match_exists_many([["cat", "fr"], ["dog"]]).to_pylist()
        [True, False]
        """
        found: pa.BooleanArray = self._of(only).match_many(
            queries, wanted=Wanted.exists, channel=channel, waited=waited
        )
        return found

    def match_best(
        self,
        queries: Any,
        *,
        limit: int,
        order_by: str | None = None,
        score: str | None = None,
        channel: str | None = None,
        waited: float = 0.0,
        only: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.ListArray:
        """The best keys of each query by a column of data or a score, each once, without making its other keys.

        Give one of `order_by` and `score`, or neither: then the least keys are the best.

        Parameters
        ----------
        queries
            As for `match_many`.
        limit : int
            How many keys a query gets at most, from 1 to 10,000.
        order_by : str, optional
            A column of `data`, and `asc` (the default) or `desc`, as in `"priority desc"`. Keys without a value come
            last, and keys with equal values in their own order. The keys of a snapshot are put in order when a column
            is first asked for.
        score : str, optional
            An expression of numbers, columns of `data` with numbers, and attributes of the queries, with `+`, `-`,
            `*`, `min(…)`, `max(…)` and parentheses, as in `"priority * 2 + max(bid, floor)"`; the keys with the
            greatest scores are the best. A name is a column of the index, or else an attribute; of several values of
            an attribute, the greatest counts. Scores are doubles. Keys whose score lacks a value, or is NaN, come
            last, and those with equal scores in their own order.
        channel, waited, only, columns
            As for `match_many`.

        Returns
        -------
        pyarrow.ListArray of uint64, or of large_string if keys are strings
            The best key of each query first; with `columns`, structs of `key` and of these.

        Raises
        ------
        TypeError, ValueError
            As `match_many`; or `limit` is out of range, or the index has no such column; or a name in `score` is
            neither a column nor an attribute of these queries, or of values that are no numbers.
        FilterError
            There is a mistake in `score`; the message names the column in it, and the text that was expected there.

        Examples
        --------
        >>> tm = TagMatch(data={"priority": "int64"})
        >>> for key, priority in ((7, 1), (8, 3), (9, 2)):
        ...     staged = tm.put(key, ["cat"], data={"priority": priority})
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> tm.match_best([["cat", "fr"], ["dog"]], limit=2, order_by="priority desc").to_pylist()
        [[8, 9], []]
        >>> tm.match_best([["cat"]], limit=1, order_by="priority desc", columns=["priority"]).to_pylist()
        [[{'key': 8, 'priority': 3}]]
        >>> import pyarrow as pa
        >>> messages = pa.table({"tags": [["cat"], ["cat"]], "bid": [5, -5]})
        >>> tm.match_best(messages, limit=2, score="priority * bid").to_pylist()
        [[8, 9], [7, 9]]
        """
        names = None if columns is None else _names(columns)
        return self._of(only).best(queries, limit, order_by, score, channel=channel, waited=waited, columns=names)

    def match_highlights(
        self, queries: Any, *, channel: str | None = None, waited: float = 0.0, only: str | None = None
    ) -> pa.ListArray:
        """The keys of each query, each with the tags and tests of its set, which all held.

        Arguments and errors are those of `match_many`. An expression with `or` is stored as several sets: those that
        matched say which alternatives held.

        Returns
        -------
        pyarrow.ListArray of structs
            `key`, `tags` (lists of strings) and `tests` (lists of strings, as `where` has them) for each key that
            `match_many` gives.

        Raises
        ------
        ResultTooLargeError
            There are 2**31 tags and tests or more.

        Examples
        --------
        >>> import pyarrow as pa
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7, where='price < 10 or city = "Rome"')
        2
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> tm.match_highlights(pa.table({"tags": [["cat", "fr"]], "price": [9]})).to_pylist()
        [[{'key': 7, 'tags': ['cat'], 'tests': ['price < 10']}]]
        """
        found: pa.ListArray = self._of(only).match_many(
            queries, wanted=Wanted.highlights, channel=channel, waited=waited
        )
        return found

    @overload
    def submit(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: Literal[False] = False,
        **options: Unpack[SubmitOptions],
    ) -> Future[list[K]]: ...

    @overload
    def submit(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: Literal[True],
        **options: Unpack[SubmitOptions],
    ) -> Future[set[K]]: ...

    @overload
    def submit(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: bool,
        **options: Unpack[SubmitOptions],
    ) -> Future[list[K]] | Future[set[K]]: ...

    def submit(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        unique: bool = False,
        block: bool = True,
        timeout: float | None = None,
        channel: str | None = None,
        only: str | None = None,
    ) -> Future[Any]:
        """`match`, or `match_unique` when `unique`, as a future, which can be cancelled until its matching begins.

        Where to wake another thread would take longer than to answer (on the CPU with layout `rarest`, few tags, short
        attributes and few keys), the calling thread answers, and the future is done.

        Parameters
        ----------
        tags, attributes, location, within, unique
            The query, as for `match`, and whether its answer is a set of keys.
        block : bool
            Wait while too many queries are being answered.
        timeout : float, optional
            Seconds to wait at most.
        channel : str, optional
            Name of the channel that the query is of, one of those that `channels` gave. Its deadline counts from now.
        only : str, optional
            As for `match`: which keys, by their data.

        Returns
        -------
        concurrent.futures.Future of list or set
            The keys, once they are found.

        Raises
        ------
        TypeError, ValueError
            As `match`; or the channel is unknown, and the message lists the known ones.
        Overloaded
            Too many queries are being answered, and `block` or `timeout` forbids to wait longer. As the future's error:
            too many messages wait already to keep the channel's deadline.
        DeadlineMissed
            As the future's error: the query was dropped, as it was late or could not be in time any more.

        Examples
        --------
        >>> from tagmatch import Channel
        >>> tm = TagMatch(channels=[Channel("alarm", deadline=5), Channel("bulk", deadline=60)], order="edf")
        >>> tm.add_set(["smoke"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.submit(["smoke", "kitchen"], channel="alarm").result()
        [7]
        >>> futures = [tm.submit([tag], channel="bulk") for tag in ("smoke", "rain")]
        >>> [future.result() for future in futures]
        [[7], []]
        >>> tm.match_many([["smoke"]] * 2, channel="bulk").to_pylist()
        [[7], [7]]
        >>> tm.stats()["channels"]["alarm"]["answered"]
        1
        """
        place = _place(location, within)
        return self._of(only).submit(
            tags, attributes, place, unique=bool(unique), timeout=timeout if block else 0.0, channel=channel
        )

    @overload
    async def amatch(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: Literal[False] = False,
        columns: None = None,
        **options: Unpack[AwaitOptions],
    ) -> list[K]: ...

    @overload
    async def amatch(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: Literal[True],
        columns: None = None,
        **options: Unpack[AwaitOptions],
    ) -> set[K]: ...

    @overload
    async def amatch(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: bool,
        columns: None = None,
        **options: Unpack[AwaitOptions],
    ) -> list[K] | set[K]: ...

    @overload
    async def amatch(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        unique: Literal[False] = False,
        columns: Sequence[str],
        **options: Unpack[AwaitOptions],
    ) -> list[dict[str, Any]]: ...

    async def amatch(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        unique: bool = False,
        channel: str | None = None,
        columns: Sequence[str] | None = None,
        only: str | None = None,
        limit: int | None = None,
        order_by: str | None = None,
        score: str | None = None,
    ) -> list[K] | set[K] | list[dict[str, Any]]:
        """`match`, or `match_unique` when `unique`, for asyncio; raises `Overloaded` at once instead of waiting.

        Of all methods, only this one is awaited; `await asyncio.to_thread(tm.match_count, …)` waits for any other. The
        loop's thread itself answers where `submit` would; then its other tasks go on before this one. The best keys,
        and over a connection columns, are found in another thread. `channel` is the same as for `submit`, other
        arguments as for `match`, and so are errors. `columns`, `limit`, `order_by` and `score` go without `unique`.

        Returns
        -------
        list or set of int or str
            The keys, as `match` and `match_unique` give them.

        Raises
        ------
        TypeError, ValueError, FilterError
            As `match`, and as `submit` where the channel is unknown.
        Overloaded, DeadlineMissed
            As `submit`, at once.

        Examples
        --------
        >>> import asyncio
        >>> tm = TagMatch(data={"priority": "int64"})
        >>> tm.add_sets([["cat"], ["dog"]], [7, 8])
        2
        >>> tm.put(9, ["cat"], data={"priority": 1})
        1
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> async def several():
        ...     return await asyncio.gather(
        ...         tm.amatch(["cow"]),
        ...         tm.amatch(["dog"], unique=True),
        ...         tm.amatch(["cat"], columns=["priority"], limit=1, order_by="priority"),
        ...     )
        >>> asyncio.run(several())
        [[], {8}, [{'key': 9, 'priority': 1}]]
        """
        is_best = not (limit is order_by is score is None)
        if unique and (is_best or columns is not None):
            raise InvalidValueError(f"{'limit, order_by and score go' if is_best else 'columns go'} without unique")
        place = _place(location, within)
        if is_best:
            import asyncio

            asked = only, columns, limit, order_by, score, channel
            return await asyncio.to_thread(self._best_of_one, tags, attributes, place, *asked)
        names = None if columns is None else _names(columns)
        found: list[K] | set[K] | list[dict[str, Any]] = await self._of(only).awaited(
            tags, attributes, place, unique=bool(unique), channel=channel, columns=names
        )
        return found

    def _best_of_one(
        self,
        tags: Iterable[str],
        attributes: object,
        place: Place,
        only: str | None,
        columns: Sequence[str] | None,
        limit: int | None,
        order_by: str | None,
        score: str | None,
        channel: str | None = None,
    ) -> list[Any]:
        """The best keys of one message."""
        engine, names = self._of(only), None if columns is None else _names(columns)
        asked = engine.one_query(tags, attributes, place)
        best = engine.best(asked, limit, order_by, score, channel=channel, waited=0.0, columns=names)
        found: list[Any] = best[0].as_py()
        return found

    @overload
    def explain(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        key: None = None,
        only: str | None = None,
    ) -> list[tuple[frozenset[str], tuple[K, ...]]]: ...

    @overload
    def explain(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        key: K,
        only: str | None = None,
    ) -> Reasons: ...

    def explain(
        self,
        tags: Iterable[str] = (),
        attributes: Mapping[str, Any] | None = None,
        *,
        location: Location | None = None,
        within: AreaForm | None = None,
        key: K | None = None,
        only: str | None = None,
    ) -> Any:
        """Every matching set with its keys, ascending; its conditions are `Where` among the tags. Errors as `match`.

        `Where.path` says how messages get to the set. Where clients must be near, or within an area, only the keys are
        given of those that are. Notebooks show the list as a table.

        With `key`: why this key is an answer to the message, or is not. That is a tree: each stored set that has the
        key, each tag, condition and area of the set, whether it holds, and why not. `str` of it is indented text,
        `to_dict()` has what JSON has. Tags are compared also if `exact` is off.

        Returns
        -------
        list of tuple, or Reasons
            The sets, each a `frozenset` of tags and a tuple of its keys; with `key`, the tree.

        Raises
        ------
        TypeError, ValueError, FilterError
            As `match`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.add_set([], 8, where="price < 10")
        1
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> for tags, keys in sorted(tm.explain(["cat", "fr"], {"price": 9}), key=lambda found: found[1]):
        ...     print(set(tags), keys)
        {'cat'} (7,)
        {Where('price < 10')} (8,)
        >>> print(tm.explain(["dog"], {"price": 12}, key=8))
        key 8 does not match: its set fails
          set 1 fails: 1 of 1 tests fails
            fails  price < 10: price is 12
        """
        if key is not None:
            return self._of(only).reasons(tags, attributes, _place(location, within), key)
        return Explanation(self._of(only).explain(tags, attributes, _place(location, within)))

    def _of(self, only: str | None) -> _Engine:
        """What reads all keys, or those alone whose data satisfies an expression."""
        try:
            return self._engine if only is None else self._engine.only(only)
        except TypeError:
            if isinstance(only, Hashable):
                raise
            raise InvalidTypeError(f"only must be a string, not {type(only).__name__} {only!r:.80}") from None

    # -- clients -----------------------------------------------------------------------------------------------------

    def move(self, clients: Any, lon: Any, lat: Any) -> None:
        """Say where clients are; in effect when this returns, without `consolidate`.

        A client is the holder of a key. A query that is answered during the call sees a client either in its old place
        or in its new one. Positions are no part of snapshots: consolidating and reloading do not change them.

        Parameters
        ----------
        clients
            Keys, as the `keys` of `add_sets`; a client may come several times, and the last time counts. They need not
            have subscriptions yet.
        lon, lat
            As many numbers, or one for all: Arrow or NumPy arrays, or sequences; degrees, or x and y on the plane. NaN
            or null in both: the client is nowhere any more.

        Raises
        ------
        TypeError, ValueError
            A key is invalid, or a number is not finite or out of range; the message names the row. No client moves
            then, nor if memory is short; after Ctrl-C, all have moved, or none.

        Examples
        --------
        >>> from tagmatch import Near
        >>> tm = TagMatch()
        >>> tm.add_set(["alert"], 7, area=Near(500))
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.move([7], [9.19], [45.46])
        >>> tm.match(["alert"], location=(9.191, 45.46))
        [7]
        """
        self._engine.move(clients, lon, lat)

    def save_positions(self) -> None:
        """Save where clients are to the folder of the index, in one step; `open` finds them there.

        `consolidate` does the same before anything else, where clients have moved. `close` or a crash loses the moves
        since then. Programs that have the index open each have their own positions: the last that saves them counts.
        `save` does not write them.

        Raises
        ------
        InvalidValueError
            There is no folder: the index is in memory, on a store, or was opened at a snapshot by its number.
        IndexExistsError
            The folder has something else in it.
        TagMatchError
            The file cannot be written.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from tagmatch import Near
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "near.index")
        >>> with TagMatch(folder) as tm:
        ...     tm.add_set(["storm"], 7, area=Near(5000))
        ...     tm.consolidate()
        ...     tm.move([7], 9.19, 45.46)
        ...     tm.save_positions()
        1
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> with TagMatch.open(folder) as tm:
        ...     tm.match(["storm"], location=(9.2, 45.46))
        [7]
        """
        self._engine.save_positions()

    # -- contents ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Distinct stored sets, not counting staged changes."""
        return self._engine.count()

    def __iter__(self) -> Iterator[tuple[frozenset[str], tuple[K, ...]]]:
        """Every stored set with its keys, ascending: those stored now, also if changes are consolidated in between.

        Staged changes do not count. Memory is needed for few sets at a time. A condition of a set (`where`) is among
        its tags as a `Where`, whose text is an expression; `add_set`, `remove_set` and `in` take such sets.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat", "fr"], ["cat", "fr"], []], [7, 8, 9])
        3
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> for tags, keys in tm:
        ...     print(sorted(tags), keys)
        [] (9,)
        ['cat', 'fr'] (7, 8)
        """
        return self._engine.every_set()

    def __contains__(self, tags: object) -> bool:
        """Whether exactly the set `tags` is stored, with any key, not counting staged changes; errors as `match`.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat", "fr"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> ["fr", "cat"] in tm, ["cat"] in tm
        (True, False)
        """
        if isinstance(tags, str | int):
            raise InvalidTypeError(f"the index has sets of tags, not {tags!r:.80}; whether it has a key, ask `records`")
        return self._engine.contains(tags)

    def get(self, key: K) -> Record[K] | None:
        """The record of a key: its subscription, as it was put, and its data; `None` if the key has no sets.

        Staged changes do not count, as for `in` and iteration. What this takes follows the sets of the key, not the
        index; the first question for a key since the index was opened puts the keys in order.

        Returns
        -------
        Record or None
            The record; its fields are those of `put`.

        Raises
        ------
        TypeError, ValueError
            The key is invalid, as for `add_set`.

        Examples
        --------
        >>> tm = TagMatch(key_type="string", data={"email": "string", "since": "date"})
        >>> tm.put("ana", ["cat"], where="price between 1 and 5", data={"email": "ana@example.org"})
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> record = tm.get("ana")
        >>> record.tags, record.where, record.data
        (frozenset({'cat'}), 'price between 1 and 5', {'email': 'ana@example.org'})
        >>> tm.get("bo") is None
        True
        """
        return self._engine.get(key)

    @property
    def records(self) -> Records[K]:
        """The records of all keys that have sets, by key: a mapping, which asks the index each time.

        `in` and `len` are about those stored now, and an iteration gives those, even if a consolidation ends in it. A
        property `keys` of the index would have `dict(tm)` fail, which gives sets with their keys.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.put(7, ["cat"])
        1
        >>> tm.add_sets([["dog"], ["dog"]], [7, 8])
        2
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> 7 in tm.records, 9 in tm.records, sorted(tm.records), len(tm.records)
        (True, False, [7, 8], 2)
        >>> [(record.key, len(record.alternatives)) for record in tm.records.values()]
        [(7, 2), (8, 1)]
        """
        return Records(self._engine)

    def to_arrow(self) -> pa.Table:
        """All stored sets and keys as columns, not counting staged changes.

        Returns
        -------
        pyarrow.Table
            Columns `tags`, lists of strings, and `key`, uint64 or, where keys are strings, large strings: a row for
            each stored set and each of its keys; if sets have conditions, `where`, expressions, null if a
            set has none; if keys expire, `expires`, timestamps in UTC, null if a key does not; and the columns of
            data, null if the row's key has no value there. There are many chunks, none of them large. `put_many(table)`
            takes it, `add_sets(table["tags"], table["key"])` without data, with `where=table["where"]` and
            `expires=table["expires"]` if it has these columns, and `tagmatch build` after it is written to a Parquet
            file, with `--data` for each column of data.

        Raises
        ------
        ResultTooLargeError
            The tags of one set alone have 2**31 bytes or more.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat"], []], [7, 8])
        2
        >>> tm.consolidate()
        ChangeCounts(added=2, already_there=0, removed=0, missing=0)
        >>> tm.to_arrow().to_pylist()
        [{'tags': [], 'key': 8}, {'tags': ['cat'], 'key': 7}]
        """
        return self._engine.to_arrow()

    # -- the object --------------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> Snapshot:
        """The tables that answer now, which never change: the next `consolidate` makes others.

        Raises
        ------
        ClosedError
            This object is closed.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> before = tm.snapshot
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> len(before), len(tm.snapshot)
        (0, 1)
        """
        return self._engine.snapshot

    def stats(self) -> dict[str, Any]:
        """Figures of the index and of the work done, which notebooks show as a table.

        Returns
        -------
        dict
            Of the snapshot: `sets`, `keys` (of all sets together), `key_type`, `tags` (different ones), `partitions`
            (clusters that have sets, in the layout `rarest`), `segments`, `deleted` (rows of them that do not count any
            more), `to_merge` (segments that are best merged, as is done in the background), `with_conditions` (rows
            of sets with conditions, also those that do not count any more, by `Where.path`), `with_areas` (rows of
            those with areas, also if they have conditions), `positions` (clients that are anywhere), `layout`,
            `max_partition_size`, `data` (the type of each column of data), `seed`, `number` (of the snapshot as it was
            saved, from which keys may have expired since; `None` if it never was); `staged` changes that are not in it
            yet, also those that a program that ended has left; `changes`: how many keys were `added`, `already_there`,
            `removed` or `missing` in all, as `consolidate` counts for its changes, since the opening; `path`, or the
            URI without passwords; `reload_error`: what went wrong when `auto_reload` last looked for a newer snapshot,
            `None` if nothing did;
            `lag`, with `auto_reload`: `behind_seconds` since it was last seen that nothing newer is saved, and
            `snapshot_seconds` since what answers was taken over; `None` without.
            Where it is matched: `device`, `devices`, `device_notes` (why not on others), `threads`, `exact`, `plane`;
            with a CUDA device, `matched_by`: how many queries it and the CPU have matched since the last
            `consolidate()`, without those that `match` answers in its own thread ((query, partition) pairs where
            queries wait by partition; once more where their areas are looked for); `index_bytes` with, among them,
            `key_bytes`; `directory_bytes`, of where keys are, if that was needed yet. Work since the opening: `queries`
            answered, `matches` (keys that they got), `verified` (sets that were compared with a query and are contained
            in it), `rejected` (candidates that are not). Now: `queries_in_flight`, `result_bytes_in_flight`, and
            `stages`, by name, with their queues and times in
            seconds; what `match` does in its own thread is not in these three. `channels`, by name, if there
            are any: messages that were `offered`, and of each of them what happened to it: `answered` (`late` of these
            after the deadline), `refused` (at once, as too much was waiting), `deserted` (at once, by the order
            `dfgs`), `dropped` (late, or as it could not be in time), `cancelled`, `failed`, or still `in_flight`; with
            times in seconds: `lateness` (of answers after the deadline), `estimate_error` (between what matching was
            expected to take and took), and `cost`, what it is expected to take: `once` and `each` message.

        Raises
        ------
        ClosedError
            This object is closed.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_sets([["cat", "fr"], ["cat"]], [7, 8])
        2
        >>> tm.add_set(["dog"], 9)
        1
        >>> staged = tm.stats()["staged"]
        >>> tm.consolidate()
        ChangeCounts(added=3, already_there=0, removed=0, missing=0)
        >>> stats = tm.stats()
        >>> staged, stats["staged"], stats["sets"], stats["tags"]
        (3, 0, 3, 3)
        """
        return Stats(self._engine.stats())

    def check(self) -> None:
        """Verify every invariant of the current snapshot.

        Raises
        ------
        InvariantError
            Names the table, the row and the invariant that is broken.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.check()  # nothing is wrong
        """
        self._engine.check()

    def save(self, path: str | os.PathLike[str], *, keep_snapshots: int | None = None) -> None:
        """Save the current snapshot as an index at `path`, replacing, in one step, an index that is there.

        It is the next snapshot of that one. So an earlier one, opened by its number and saved to its index,
        is the current one again.

        Parameters
        ----------
        path : str or Path
            A folder, or the URI of a folder on a store, as for `open`. Stores have no locks: let one program at a time
            save to an index there. Only on S3 and Google Cloud Storage is replacing one step.
        keep_snapshots : int, optional
            How many earlier snapshots of the index at `path` are to stay, from now on; default: as many as it says.

        Raises
        ------
        InvalidTypeError, InvalidValueError
            It is neither.
        IndexExistsError
            The path holds something that is not an index.
        TagMatchError
            It cannot be written.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp(), "animals.index")
        >>> tm = TagMatch()  # in memory
        >>> tm.add_set(["cat"], 7)
        1
        >>> tm.consolidate()
        ChangeCounts(added=1, already_there=0, removed=0, missing=0)
        >>> tm.save(folder)
        >>> with TagMatch.open(folder) as saved:
        ...     saved.match(["cat"])
        [7]
        """
        self._engine.save(path, keep_snapshots)

    def close(self, *, drain: bool = True) -> None:
        """Answer or, without `drain`, cancel the submitted queries, end all threads and free all memory.

        Staged changes that were not consolidated are lost, with a `StagedChangesWarning`. Within a callback of a
        future, whose thread is one of those to end, this returns at once and the rest is done in the background.

        Examples
        --------
        >>> tm = TagMatch()
        >>> tm.close()
        >>> tm.match(["cat"])
        Traceback (most recent call last):
        tagmatch.ClosedError: ...
        """
        self._engine.close(drain=drain)

    def __enter__(self) -> Self:
        self._engine.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._engine.leave(failed=kind is not None)

    def __repr__(self) -> str:
        return self._engine.described()

    def _repr_html_(self) -> str | None:
        """What notebooks show; an index that is closed, or out of reach, is shown as `repr` has it."""
        try:
            return overview(self._engine.stats())
        except TagMatchError:
            return None


def _place(location: object, within: object) -> Place:
    if location is None and within is None:
        return NOWHERE
    if within is not None and not isinstance(within, Circle | Box):
        from tagmatch.model.input.places import area_from

        within = area_from(within, "within")
    return Place(location, within)


def _names(columns: Iterable[str]) -> list[str]:
    """Names of columns of data."""
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        raise InvalidTypeError(f"columns must be a list of names, not {type(columns).__name__} {columns!r:.80}")
    return list(columns)


def _is_error(missing: object) -> bool:
    """Whether it is an error to remove a set that is not stored."""
    if missing not in get_args(Missing):
        raise InvalidValueError(f'missing must be "ignore" or "error", not {missing!r:.80}')
    return missing == "error"
