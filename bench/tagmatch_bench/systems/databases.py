"""Databases that scan or index arrays of tags: PostgreSQL and MongoDB; and one in shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, count
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, LiteralString, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tagmatch.model.arrays import U64Array
from tagmatch.pipeline.unique import merge_all
from tagmatch_bench.systems.matcher import (
    ONE_STATEMENT,
    Matcher,
    Plain,
    Queries,
    UnavailableError,
    answers_to_pylist,
    list_array,
    lists_by_query,
    lists_in,
    needed,
    rarest_of,
    rows_of,
    table_of_rows,
    unique_lists,
)
from tagmatch_bench.systems.servers import PostgresServer

if TYPE_CHECKING:
    from psycopg.sql import Composed


def to_signed(keys: list[int]) -> list[int]:
    """Return the signed integers that have the same bits."""
    signed: list[int] = np.array(keys, np.uint64).view(np.int64).tolist()
    return signed


def from_signed(lists: Iterable[Iterable[int]], *, unique: bool) -> U64Array:
    """Return the keys of all lists of signed integers, `unique` ones once each."""
    keys = np.fromiter(chain.from_iterable(lists), np.int64).view(np.uint64)
    return np.unique(keys) if unique else keys


class Sharded(Generic[Queries]):
    """Stored sets dealt out over matchers of one kind, which all answer every query, each in its own thread."""

    def __init__(self, build: Callable[[pa.Table], Matcher[Queries]], sets: pa.Table, shards: int) -> None:
        if shards < 1:
            raise ValueError(f"shards is {shards}; give at least 1")
        rows = rows_of(sets)
        self._shards: list[Matcher[Queries]] = []
        with ExitStack() as started:
            for first in range(shards):
                shard = build(table_of_rows(rows[first::shards]))
                started.callback(shard.close)
                self._shards.append(shard)
            self._threads = started.enter_context(ThreadPoolExecutor(shards))
            self._started = started.pop_all()
        self.exact = all(shard.exact for shard in self._shards)

    def prepare(self, queries: pa.ListArray) -> Queries:
        """Convert to the form that the shards take."""
        return self._shards[0].prepare(queries)

    def match_many(self, queries: Queries, *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order: those of all shards."""
        found = self._threads.map(lambda shard: answers_to_pylist(shard.match_many(queries)), self._shards)
        answers = [list(chain.from_iterable(keys)) for keys in zip(*found, strict=True)]
        return unique_lists(answers) if unique else answers

    def nbytes(self) -> int | None:
        """Bytes of all shards."""
        sizes = [shard.nbytes() for shard in self._shards]
        return None if None in sizes else sum(size for size in sizes if size)

    def close(self) -> None:
        """Close all shards."""
        self._started.close()


_table_numbers = count()


class PostgresTable(Plain):
    """A table of PostgreSQL, on a server that is given or started for it, and dropped at the end."""

    def _open(self, name: str, server: PostgresServer | None, threads: int, undo: ExitStack) -> Callable[..., Any]:
        """Connect; `threads` processes may work on one call, as PostgreSQL's planner pleases. What names the table."""
        with needed("psycopg"):
            from psycopg.sql import SQL, Identifier
        table = Identifier(f"{name}_{next(_table_numbers)}")
        if server is None:
            server = undo.enter_context(PostgresServer())
        self._connection = undo.enter_context(server.connect())
        self._connection.execute(SQL("SET max_parallel_workers_per_gather = {}").format(threads - 1))
        undo.callback(self._connection.execute, SQL("DROP TABLE IF EXISTS {}").format(table))
        self._size = SQL("SELECT pg_total_relation_size({}::regclass)").format(table.as_string())
        return lambda statement: SQL(statement).format(table)

    def plan(self, *asked: Any) -> str:
        """Return how PostgreSQL would answer (its `EXPLAIN`)."""
        from psycopg.sql import SQL

        rows = self._connection.execute(SQL("EXPLAIN {}").format(self._select), [*map(list, asked)])
        return "\n".join(line for (line,) in rows)

    _select: Any
    _undo: ExitStack

    def nbytes(self) -> int | None:
        """Bytes on disk of the table and its indexes (`pg_total_relation_size`)."""
        row = self._connection.execute(self._size).fetchone()
        return None if row is None else int(row[0])

    def close(self) -> None:
        """Drop the table, and stop the server if it was started for it."""
        self._undo.close()


class PostgresScan(PostgresTable):
    """PostgreSQL's `tags <@ query`, on a table with a row for each distinct set, scanned for each query. Exact."""

    #: Columns of the table `{}`, statements that make its index, and the query, which gets the tags as `tags`
    _columns: ClassVar[tuple[LiteralString, ...]] = ("tags text[]", "keys bigint[]")
    _index: ClassVar[tuple[LiteralString, ...]] = ()
    _query: ClassVar[LiteralString] = "SELECT keys FROM {} WHERE tags <@ %(tags)s::text[]"

    def __init__(self, sets: pa.Table, *, threads: int = 1, server: PostgresServer | None = None) -> None:
        with ExitStack() as undo:
            on_table = self._open("sets", server, threads, undo)
            self._add_extension(self._connection)
            self._connection.execute(on_table("CREATE UNLOGGED TABLE {} (" + ", ".join(self._columns) + ")"))
            self._load(on_table("COPY {} FROM STDIN (FORMAT BINARY)"), sets)
            for statement in (*self._index, "VACUUM (ANALYZE) {}"):
                self._connection.execute(on_table(statement))
            self._undo = undo.pop_all()
        self._select = on_table(self._query)

    def _add_extension(self, connection: Any) -> None:
        """Nothing."""

    def _load(self, copy_in: Composed, sets: pa.Table) -> None:
        with self._connection.cursor() as cursor, cursor.copy(copy_in) as copy:
            copy.set_types([column.partition(" ")[2] for column in self._columns])
            for row in self._rows(sets):
                copy.write_row(row)

    def _rows(self, sets: pa.Table) -> Iterable[tuple[Any, ...]]:
        _refuse_nul(sets["tags"].combine_chunks(), "tags")
        return ((list(tags), to_signed(keys)) for tags, keys in rows_of(sets))

    def prepare(self, queries: pa.ListArray) -> list[list[str]]:
        """Convert to lists of strings."""
        _refuse_nul(queries, "queries")
        return cast("list[list[str]]", queries.to_pylist())

    def match_many(self, queries: Sequence[list[str]], *, unique: bool = False) -> list[U64Array]:
        """Return the keys of the stored sets that match, for each query in order."""
        answers = []
        for query in queries:
            rows = self._connection.execute(self._select, {"tags": query}, prepare=True, binary=True).fetchall()
            answers.append(from_signed((keys for (keys,) in rows), unique=unique))
        return answers


class PostgresGin(PostgresScan):
    """PostgreSQL's `tags <@ query`, by a GIN index on the tags. Exact.

    A GIN index lists the rows of each tag. It does not tell which rows have no other tags than the query's, so
    PostgreSQL looks at all rows that have any of them, and at those of the empty set. The index refuses tags of
    more than some kilobytes.
    """

    _index = ("CREATE INDEX ON {} USING gin (tags)", "SET enable_seqscan = off")


class PostgresRarest(PostgresScan):
    """PostgreSQL with a column for each set's rarest tag and a B-tree on it, as an expert would store sets. Exact."""

    _columns = (*PostgresScan._columns, "rarest text")
    _index = ("CREATE INDEX ON {} (rarest)",)
    _query = (
        "SELECT keys FROM {0} WHERE rarest = ANY(%(tags)s::text[]) AND tags <@ %(tags)s::text[]"
        " UNION ALL SELECT keys FROM {0} WHERE rarest IS NULL"  # the empty set
    )

    def _rows(self, sets: pa.Table) -> Iterable[tuple[Any, ...]]:
        rows = list(super()._rows(sets))
        return ((*row, tag) for row, tag in zip(rows, rarest_of(tags for tags, _ in rows), strict=True))


_EXTENSION = "intarray"


class PostgresInts(PostgresScan):
    """PostgreSQL's extension `intarray`: tags as sorted numbers, the rarest with a B-tree, and `<@` of numbers. Exact.

    Numbers of tags are in a dictionary of this process. Indexes of the extension are no help, as they are made for
    sets that contain a query: GIN lists the rows of each number, and for `<@` would look at all rows that have any of
    them; GiST joins sets to larger ones, which tell nothing of the smallest, so that the extension has taken `<@` out.
    One statement for all queries of a call.
    """

    call_size = ONE_STATEMENT

    _columns = ("tags int4[]", "keys bigint[]", "rarest int4")
    _index = ("CREATE INDEX ON {} (rarest)",)
    _query = """
        WITH asked AS MATERIALIZED (SELECT query, array_agg(tag) AS tags
            FROM unnest(%(queries)s::int4[], %(tags)s::int4[]) AS pairs (query, tag) GROUP BY query)
        SELECT query, keys FROM asked CROSS JOIN unnest(asked.tags) AS tag
            JOIN {0} AS sets ON rarest = tag AND sets.tags <@ asked.tags
        UNION ALL SELECT query, keys FROM generate_series(0, %(count)s - 1) AS query, {0} WHERE rarest IS NULL"""

    def _add_extension(self, connection: Any) -> None:
        add_extension(connection, _EXTENSION, "postgresql-contrib")

    def _rows(self, sets: pa.Table) -> Iterable[tuple[Any, ...]]:
        rows = rows_of(sets)
        common = Counter(chain.from_iterable(tags for tags, _ in rows)).most_common()
        self._numbers = {tag: number for number, (tag, _) in enumerate(common)}  # the rarest of a set is the last
        for tags, keys in rows:
            numbers = self._numbers_of(tags)
            yield numbers, to_signed(keys), numbers[-1] if numbers else None

    def _numbers_of(self, tags: Iterable[str]) -> list[int]:
        return sorted({number for tag in tags if (number := self._numbers.get(tag)) is not None})

    def prepare(self, queries: pa.ListArray) -> list[list[int]]:  # type: ignore[override]
        """Convert to the numbers of known tags."""
        return [*map(self._numbers_of, queries.to_pylist())]

    def match_many(self, queries: Sequence[list[int]], *, unique: bool = False) -> pa.ListArray:  # type: ignore[override]
        """Return the keys of the stored sets that match, for each query in order."""
        asked = [number for number, tags in enumerate(queries) for _ in tags]
        given = {"queries": asked, "tags": [*chain.from_iterable(queries)], "count": len(queries)}
        rows = self._connection.execute(self._select, given, prepare=True, binary=True).fetchall()
        query_of = np.fromiter((query for query, keys in rows for _ in keys), np.int64)
        found = lists_by_query(query_of, from_signed((keys for _, keys in rows), unique=False), len(queries))
        return list_array(merge_all(lists_in(found))) if unique else found


def add_extension(connection: Any, name: str, package: str) -> None:
    """Raise `UnavailableError` if PostgreSQL's server lacks an extension, which a Debian package has."""
    import psycopg

    try:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name}")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
        message = f"needs the extension {name} of PostgreSQL's server (Debian package {package})"
        raise UnavailableError(message) from error


def _refuse_nul(lists: pa.ListArray, column: str) -> None:
    bad = pc.match_substring(lists.flatten(), "\0")
    row = pc.list_parent_indices(lists).filter(bad)[:1].to_pylist()
    if row:
        nul = "a tag has the character NUL, which PostgreSQL's strings cannot hold; leave it out"
        raise ValueError(f"column {column!r}, row {row[0]}: {nul}")


_DOCUMENTS_AT_ONCE = 10_000
_SECONDS_TO_CONNECT = 2
_HOW_TO_START = "start one with `mongod --dbpath FOLDER`, it listens at mongodb://localhost:27017"


Operator = Literal["setIsSubset", "nin"]


class MongoDB(Sharded[list[dict[str, Any]]]):
    """The subset test of one or several MongoDB servers, over which the stored sets are dealt out. Exact."""

    def __init__(
        self,
        sets: pa.Table,
        uris: Sequence[str],
        *,
        threads: int = 1,  # noqa: ARG002
        operator: Operator = "setIsSubset",
    ) -> None:
        if not uris:
            raise UnavailableError(f"needs the URI of a running MongoDB server; {_HOW_TO_START}")
        remaining = iter(uris)
        super().__init__(lambda share: _Collection(share, next(remaining), operator), sets, len(uris))


class _Collection:
    """A document for each distinct set on one server, in its own database that `close` drops.

    As in the paper, the array of tags is indexed.
    """

    exact = True

    def __init__(self, sets: pa.Table, uri: str, operator: Operator) -> None:
        with needed("pymongo"):
            import pymongo
            from pymongo.errors import PyMongoError
        self._filter = {"setIsSubset": _is_subset, "nin": _has_no_other}[operator]
        name = f"tagmatch_bench_{uuid4().hex}"
        with ExitStack() as undo:
            try:
                client: pymongo.MongoClient[dict[str, Any]] = undo.enter_context(
                    pymongo.MongoClient(uri, serverSelectionTimeoutMS=1000 * _SECONDS_TO_CONNECT)
                )
                client.admin.command("ping")
            except (PyMongoError, ValueError) as error:
                message = f"no MongoDB server answers at {uri}; {_HOW_TO_START}"
                raise UnavailableError(f"{message} ({error})") from error
            undo.callback(client.drop_database, name)
            self._database = client[name]
            self._sets = self._database["sets"]
            self._sets.create_index("tags")
            for documents in _batches(sets):
                self._sets.insert_many(documents, ordered=False)
            self._undo = undo.pop_all()

    def prepare(self, queries: pa.ListArray) -> list[dict[str, Any]]:
        """Convert to MongoDB's filters."""
        return [self._filter(query) for query in queries.to_pylist()]

    def match_many(self, queries: Sequence[dict[str, Any]], *, unique: bool = False) -> list[U64Array]:
        """Return the keys of the stored sets that match, for each query in order."""
        found = (self._sets.find(query, {"keys": True, "_id": False}) for query in queries)
        return [from_signed((document["keys"] for document in documents), unique=unique) for documents in found]

    def nbytes(self) -> int | None:
        """Bytes on disk of the documents and the index (`dbStats`)."""
        return int(self._database.command("dbStats")["totalSize"])

    def close(self) -> None:
        """Drop the collection and disconnect."""
        self._undo.close()


def _is_subset(query: list[str]) -> dict[str, Any]:
    # A literal, as strings that begin with $ would be names of fields
    return {"$expr": {"$setIsSubset": ["$tags", {"$literal": query}]}}


def _has_no_other(query: list[str]) -> dict[str, Any]:
    return {"tags": {"$not": {"$elemMatch": {"$nin": query}}}}


def _batches(sets: pa.Table) -> Iterator[list[dict[str, Any]]]:
    rows = rows_of(sets)
    for first in range(0, len(rows), _DOCUMENTS_AT_ONCE):
        batch = rows[first : first + _DOCUMENTS_AT_ONCE]
        yield [{"tags": list(tags), "keys": to_signed(keys)} for tags, keys in batch]
