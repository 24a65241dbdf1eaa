"""Systems that are no tables, and find sets by rarest tags: Redis, tantivy and Roaring bitmaps."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain, count, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tagmatch.model.arrays import Lists, list_offsets
from tagmatch.model.tables import KeyTable
from tagmatch_bench.systems.matcher import ListsOfStrings, keys_of, list_array, needed, rarest_of, rows_of, unique_lists
from tagmatch_bench.systems.servers import RedisServer

if TYPE_CHECKING:
    from pyroaring import BitMap

_numbers = count()
#: Commands of a pipeline that stores or removes
_AT_ONCE = 10_000


class RedisRarest(ListsOfStrings):
    """Redis with a set of candidates for each tag, those whose rarest tag it is, tested in this process. Exact.

    A member is JSON of a candidate's tags and keys. A call is one pipeline, with a SUNION for each query: that is
    sooner than SMEMBERS of each tag once, and much sooner than ZUNION of all sets of each tag, which counts. One
    thread, as Redis has.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1, server: RedisServer | None = None) -> None:  # noqa: ARG002
        self._name = f"sets {next(_numbers)}"
        candidates = defaultdict[str, list[str]](list)
        rows = rows_of(sets)
        for (tags, keys), rarest in zip(rows, rarest_of(tags for tags, _ in rows), strict=True):
            candidates[self._of(rarest)].append(json.dumps([[*tags], keys]))
        with ExitStack() as undo:
            if server is None:
                server = undo.enter_context(RedisServer())
            self._database = undo.enter_context(server.connect())
            before = self._memory()
            undo.callback(self._do, "unlink", [(name,) for name in candidates])
            self._do("sadd", [(name, *members) for name, members in candidates.items()])
            self._bytes = self._memory() - before
            self._undo = undo.pop_all()

    def _of(self, rarest: str | None) -> str:
        return self._name if rarest is None else f"{self._name}:{rarest}"

    def _memory(self) -> int:
        return int(self._database.info("memory")["used_memory"])

    def _do(self, command: str, arguments: list[tuple[str, ...]]) -> None:
        for first in range(0, len(arguments), _AT_ONCE):
            pipeline = self._database.pipeline(transaction=False)
            for each in arguments[first : first + _AT_ONCE]:
                getattr(pipeline, command)(*each)
            pipeline.execute()

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        pipeline = self._database.pipeline(transaction=False)
        for query in queries:
            pipeline.sunion([self._of(None), *map(self._of, query)])
        answers = []
        for asked, members in zip(map(frozenset, queries), pipeline.execute(), strict=True):
            candidates = map(json.loads, members)
            answers.append([key for tags, keys in candidates if asked.issuperset(tags) for key in keys])
        return unique_lists(answers) if unique else answers

    def nbytes(self) -> int | None:
        """Bytes of memory that the server took."""
        return self._bytes

    def close(self) -> None:
        """Remove the sets, and stop the server if it was started for them."""
        self._undo.close()


#: Documents that are asked for first
_FEW = 1000


class TantivyRarest(ListsOfStrings):
    """The search engine tantivy, asked for documents whose rarest tag is a query's, which are tested here. Exact.

    An index in memory. To read a document takes longer than to find it, so a column has a signature of 64 bits, and
    those documents are read whose bits are in the query's. Queries are asked one by one, as a second thread gains
    nothing; each is a disjunction, which is sooner here than a term set, and than to count each query's terms in the
    index with `minimum_number_should_match` for each size of sets.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:
        with needed("tantivy"):
            import tantivy
        self._tantivy = tantivy
        fields = tantivy.SchemaBuilder()
        fields.add_bytes_field("rarest", indexed=True)
        fields.add_bytes_field("tag", stored=True)
        for name in ("signature", "key"):
            fields.add_unsigned_field(name, fast=True)
        self._schema = fields.build()
        index = tantivy.Index(self._schema)
        writer = index.writer(num_threads=threads)
        rows = rows_of(sets)
        for (tags, keys), rarest in zip(rows, rarest_of(tags for tags, _ in rows), strict=True):
            for key in keys:
                document = tantivy.Document()
                document.add_bytes("rarest", _term(rarest))
                document.add_unsigned("signature", _signature(tags))
                document.add_unsigned("key", key)
                for tag in tags:
                    document.add_bytes("tag", tag.encode())
                writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        self._searcher: Any = index.searcher()  # its types lack a result's `count`

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> list[list[int]]:
        """Return the keys of the stored sets that match, for each query in order."""
        answers = [self._match(frozenset(query)) for query in queries]
        return unique_lists(answers) if unique else answers

    def _match(self, query: frozenset[str]) -> list[int]:
        searcher, others, tags = self._searcher, ~_signature(query), {tag.encode() for tag in query}
        candidates = self._candidates(query)
        signatures = searcher.fast_field_values("signature", candidates)
        few = [where for where, bits in zip(candidates, signatures, strict=True) if not bits & others]
        found = [where for where in few if tags.issuperset(searcher.doc(where).get_all("tag"))]
        keys: list[int] = searcher.fast_field_values("key", found)
        return keys

    def _candidates(self, query: frozenset[str]) -> list[Any]:
        occur, asked = self._tantivy.Occur.Should, self._tantivy.Query
        terms = [(occur, asked.term_query(self._schema, "rarest", _term(tag), "basic")) for tag in (None, *query)]
        wanted = asked.const_score_query(asked.boolean_query(terms), 1.0)
        found = self._searcher.search(wanted, _FEW)
        if found.count > _FEW:
            found = self._searcher.search(wanted, found.count)
        return [where for _, where in found.hits]


def _term(rarest: str | None) -> bytes:
    return b"" if rarest is None else b"t" + rarest.encode()


def _signature(tags: frozenset[str]) -> int:
    bits = 0
    for tag in tags:
        bits |= 1 << (hash(tag) & 63)
    return bits


class RoaringBitmaps(ListsOfStrings):
    """Roaring bitmaps of stored sets: how many of a query's tags each has, as bit-sliced counters. Exact.

    Sets whose rarest tag is one of the query's are candidates. Each tag's bitmap of sets is added to the candidates'
    counters, with carries; sets match whose counters are their sizes, which have slices, too. To count in all sets
    takes longer; with fewer than some 50,000 sets, a test of each candidate by its tags takes less.
    """

    def __init__(self, sets: pa.Table, *, threads: int = 1) -> None:  # noqa: ARG002
        with needed("pyroaring"):
            from pyroaring import BitMap
        self._union: Callable[..., BitMap] = BitMap.union
        rows = rows_of(sets)
        of_tag, of_rarest, of_size = (defaultdict[Any, list[int]](list) for _ in range(3))
        for number, rarest in enumerate(rarest_of(tags for tags, _ in rows)):
            tags = rows[number][0]
            of_rarest[rarest].append(number)
            for tag in tags:
                of_tag[tag].append(number)
            for place in range(len(tags).bit_length()):
                if len(tags) >> place & 1:
                    of_size[place].append(number)
        self._of_tag, self._of_rarest = ({tag: BitMap(at) for tag, at in of.items()} for of in (of_tag, of_rarest))
        self._none = BitMap()
        self._of_rarest.setdefault(None, self._none)
        self._sizes = [BitMap(of_size[place]) for place in range(max(of_size, default=-1) + 1)]
        keys = np.fromiter(chain.from_iterable(keys for _, keys in rows), np.uint64)
        self._keys = KeyTable(Lists(list_offsets(np.array([len(keys) for _, keys in rows], np.int64)), keys))

    def match_many(self, queries: list[list[str]], *, unique: bool = False) -> pa.ListArray:
        """Return the keys of the stored sets that match, for each query in order."""
        found = [self._sets_in(frozenset(query)) for query in queries]
        sets = np.fromiter(chain.from_iterable(found), np.uint32)
        matches = Lists(list_offsets(np.array([*map(len, found)], np.int64)), sets)
        return list_array(keys_of(matches, self._keys, unique=unique))

    def _sets_in(self, query: frozenset[str]) -> array[int]:
        some = [sets for tag in query if (sets := self._of_rarest.get(tag))]
        candidates = self._union(self._none, self._of_rarest[None], *some)
        counters: list[BitMap] = []
        for tag in query if some else ():
            carry = self._of_tag.get(tag, self._none) & candidates
            for place, counter in enumerate(counters):
                counters[place], carry = counter ^ carry, counter & carry
                if not carry:
                    break
            else:
                counters.append(carry)
        found = candidates.copy()
        for size, counter in zip_longest(self._sizes, counters, fillvalue=self._none):
            found -= counter ^ (size & candidates)
        return found.to_array()
