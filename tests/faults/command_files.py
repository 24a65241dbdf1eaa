"""An index, and files of sets and queries, for the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from support.command import as_json_lines, tagmatch_alone, write
from support.index_files import contents_of

from tagmatch import TagMatch

_QUERIES = 2_000
_SCHEMA = pa.schema([("tags", pa.list_(pa.string())), ("attributes", pa.struct([("price", pa.float64())]))])


@dataclass
class Files:
    """What commands read, and what `tagmatch build` makes of `sets`."""

    index: Path
    queries: Path
    parquet_queries: Path
    sets: Path
    built: dict[str, bytes]


def make_files(folder: Path) -> Files:
    """Files for whose queries there are 3 MB of answers."""
    index, queries, sets = folder / "index", folder / "queries.jsonl", folder / "sets.jsonl"
    with TagMatch(index, durability="none") as tm:
        tm.add_set(["a"], 1)
        # Of half of all queries the price is less
        where = [None, "price < 10 or exists(sale)"] * 100
        tm.add_sets([["many"]] * 200, range(1_000_000, 1_000_200), where=where)
        tm.consolidate()
    records = [
        {"tags": ["many", f"n{number % 7}"], "attributes": {"price": float(number % 20)}} for number in range(_QUERIES)
    ]
    queries.write_bytes(as_json_lines(records))
    parquet = write(folder / "queries.parquet", records, _SCHEMA)
    where = {number: f"price < {number}" for number in range(0, 50, 5)}
    sets.write_bytes(
        as_json_lines([{"tags": ["a", f"b{key}"], "key": key, "where": where.get(key % 50)} for key in range(10_000)])
    )
    built = folder / "built"
    tagmatch_alone("build", sets, built)
    return Files(index, queries, parquet, sets, contents_of(built))
