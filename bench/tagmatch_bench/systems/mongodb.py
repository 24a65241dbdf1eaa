"""MongoDB: documents with an array of tags, on a running server (§4.4 of the TagMatch paper)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from tagmatch_bench.systems.matcher import UnavailableError, rows_of
from tagmatch_bench.systems.packages import needed
from tagmatch_bench.systems.sharded import Sharded
from tagmatch_bench.systems.signed_keys import from_signed, to_signed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from tagmatch.model.arrays import U64Array

_DOCUMENTS_AT_ONCE = 10_000
_SECONDS_TO_CONNECT = 2
_HOW_TO_START = "start one with `mongod --dbpath FOLDER`, it listens at mongodb://localhost:27017"


Operator = Literal["setIsSubset", "nin"]


class MongoDB(Sharded[list[dict[str, Any]]]):
    """The subset test of one or several MongoDB servers, over which the stored sets are dealt out. Exact.

    Parameters
    ----------
    sets
        Columns `tags` and `key`.
    uris
        Where the servers are, as `mongodb://localhost:27017`.
    threads
        Not used: the servers decide.
    operator
        `setIsSubset`: the subset operator of aggregations, within `$expr`. `nin`: no tag of the set is missing in
        the query, `{tags: {$not: {$elemMatch: {$nin: query}}}}`.

    Raises
    ------
    UnavailableError
        The Python package is missing, or a server does not answer.
    """

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
    """A document for each distinct set on one server, in a database of its own that `close` drops.

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
