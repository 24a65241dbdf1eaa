"""Values of every type have the same answers on each way in: Python, commands with files, Flight, and HTTP."""

import io
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import And, AtLeast, Compared, Not, Or, Test, Tree, evaluate, type_of
from support import filters
from support.command import answers, as_csv, as_json_lines, done, refused, write
from support.expressions import text_of
from support.filters import ADDRESSES, DECIMALS, TIMES, VERSIONS, neighbours
from support.service import config, posted

from tagmatch import TagMatch, connect
from tagmatch.broker.service import serving

pytestmark = pytest.mark.slow

# -- attributes, and conditions on them --------------------------------------------------------------------------------

_GREAT = (0, 5, 2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1)
#: Of each attribute the declared type, and values that are compared
VALUES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "day": ("date", (date(2026, 10, 25), date(1969, 12, 31))),
    "at": ("timestamp", tuple(each for each in TIMES if isinstance(each, datetime))),
    "price": ("decimal(38, 10)", tuple(each for each in DECIMALS if 10**-8 < abs(each) < 10**20)),
    "big": ("uint64", _GREAT),
    "rank": ("float64", (0.1, 0.5, 2.0**53, 5.0)),
    "release": ("version", VERSIONS),
    "ip": ("ip", ADDRESSES),
    "new": ("bool", (True, False)),
    "title": ("string", ("", "a", "ab", "b", "é", "007", "true", "9.5", '"a"', "[1]", "a,b\n", "2026-10-25")),
}  # fmt: skip
_NETWORKS = tuple(map(ip_network, ("10.0.0.0/8", "10.0.0.0/31", "2001:db8::/32")))
_NOW = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)


def _trees() -> Iterator[Tree]:
    choices = random.Random(7)
    for name, (_, values) in VALUES.items():
        some = choices.sample(values, min(3, len(values)))
        operators = ["="] if name == "new" else ["=", "!=", "<", "<=", ">", ">="]
        yield from (Test(name, operator, (value,)) for operator in operators for value in some)
        yield from (Test(name, operator, tuple(some)) for operator in ("in", "not in"))
        yield Not(Test(name, "exists", ()))
        if name != "new":
            yield filters.in_order(Test(name, "between", (some[0], some[1])))
    yield from (Test("ip", operator, (each,)) for each in _NETWORKS for operator in ("in", "not in"))
    yield from (Test("title", operator, ("a",)) for operator in ("prefix", "suffix", "contains", "like", "matches"))
    yield from (
        Compared("day", "<=", "at"),
        Compared("big", "<", "price"),
        Compared("rank", "=", "big"),
        Compared("at", ">=", "now()", TIMES_LATER),
        AtLeast(2, (Test("big", "<", (5,)), Test("price", "<", (1,)), Test("rank", "<", (1,)))),
        Or((And((Test("new", "=", (True,)), Test("big", ">", (0,)))), Not(Test("title", "=", ("a",))))),
    )


TIMES_LATER = datetime(2026, 10, 24, tzinfo=UTC) - datetime(2026, 10, 25, tzinfo=UTC)
TREES = list(_trees())
WHERE = [text_of(tree, random.Random(number)) for number, tree in enumerate(TREES)]


# -- messages, in each form --------------------------------------------------------------------------------------------


def _is_of(name: str, value: Any) -> bool:
    kind = type_of(value)
    if name in ("big", "price", "rank"):
        wanted = {"big": int, "price": Decimal, "rank": float}[name]
        is_fit = kind == "number" and isinstance(value, wanted)
        return is_fit and (name != "big" or value >= 0) and (name != "price" or _fits(value))
    if name in ("day", "at"):
        return kind == "time" and isinstance(value, datetime) == (name == "at")
    return kind == {"release": "version", "ip": "ip", "new": "bool", "title": "text"}[name]


def _fits(value: Decimal) -> bool:
    return abs(value) < 10**27 and -value.as_tuple().exponent <= 10  # type: ignore[operator]


def _values(name: str) -> st.SearchStrategy[Any]:
    """None, one or several, each near to one that a condition has."""
    near = [each for value in VALUES[name][1] for each in neighbours(value) if _is_of(name, each)]
    one = st.sampled_from(near)
    return st.one_of(one, one, st.none(), st.lists(one | st.none(), max_size=3))


MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={name: _values(name) for name in VALUES}), min_size=1, max_size=5
)


def as_json(value: Any, *, is_text: bool) -> Any:
    """A value as JSON has it; where its type is declared, a text may say it."""
    if isinstance(value, list):
        return [as_json(each, is_text=is_text) for each in value]
    kind = type_of(value) if value is not None else ""
    if isinstance(value, Decimal):
        return str(value) if is_text else {"decimal": str(value)}
    if kind not in ("time", "version", "ip"):
        return value
    name = {"time": "timestamp" if isinstance(value, datetime) else "date"}.get(kind, kind)
    text = value.isoformat() if kind == "time" else str(value)
    return text if is_text else {name: text}


#: What columns of Arrow an attribute may have
ARROW: dict[str, tuple[pa.DataType, ...]] = {
    "day": (pa.date32(), pa.date64()),
    "at": (pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Rome")),
    "price": (pa.decimal128(38, 10), pa.decimal256(60, 20)),
    "big": (pa.uint64(), pa.int64(), pa.dictionary(pa.int8(), pa.uint64())),
    "rank": (pa.float64(), pa.dictionary(pa.int32(), pa.float64())),
    "new": (pa.bool_(),),
    "title": (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())),
}


def as_table(messages: list[dict[str, Any]], draw: Callable[[Any], Any], *, is_text: bool) -> pa.Table:
    """A column for each attribute; what Arrow has no type for is a column of JSON's forms, or of texts."""
    columns: dict[str, pa.Array] = {"tags": pa.array([["t"]] * len(messages))}
    columns["now()"] = pa.array([_NOW] * len(messages), pa.timestamp("us", "UTC"))
    for name in dict.fromkeys(name for message in messages for name in message):
        given = [message.get(name) for message in messages]
        kind = draw(st.sampled_from(ARROW[name])) if name in ARROW else None
        if is_text and VALUES[name][0] in ("date", "timestamp", "version", "ip", "decimal(38, 10)"):
            kind = kind if kind is not None and draw(st.booleans()) else pa.string()
        if kind is None or (pa.types.is_string(kind) and name != "title"):
            given = [as_json(each, is_text=is_text) for each in given]
        if any(isinstance(each, list) for each in given):
            kind = kind and draw(st.sampled_from([pa.list_(kind), pa.large_list(kind)]))
            given = [each if each is None or isinstance(each, list) else [each] for each in given]
        columns[name] = pa.array(given, kind)
    return pa.table(columns)


# -- the ways ----------------------------------------------------------------------------------------------------------

Answers = list[list[int]]
ARROW_STREAM = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True)
class Ways:
    """One index, saved, and a service that has it."""

    index: TagMatch[Any]
    client: Any
    url: str
    folder: Path
    is_declared: bool

    def single(self, messages: list[dict[str, Any]]) -> dict[str, Answers]:
        """Ways that take a message as it is in Python, or in JSON."""
        lines = [{"tags": ["t"], "attributes": self.in_json(each)} for each in messages]
        python = [{**each, "now()": _NOW} for each in messages]
        return {
            "match": [sorted(self.index.match_unique(["t"], each)) for each in python],
            "match of JSON": [sorted(self.index.match_unique(["t"], each["attributes"])) for each in lines],
            "submit": [sorted(self.index.submit(["t"], each, unique=True).result(60)) for each in python],
            "client's match": [sorted(self.client.match_unique(["t"], each)) for each in python],
            "POST /match": [sorted(self.post("/match", {**each, "unique": True})["keys"]) for each in lines],
            "POST /match_many": [sorted(each["keys"]) for each in self.post("/match_many?unique=true", lines)],
            "JSON Lines": self.command("m.jsonl", as_json_lines(lines)),
            "JSON Lines, columns": self.command(
                "c.jsonl", as_json_lines([{"tags": ["t"], **each["attributes"]} for each in lines])
            ),
            "CSV": self.command("m.csv", as_csv(lines)),
            "CSV, columns": self.command("c.csv", as_csv([{"tags": ["t"], **_cells(each)} for each in lines])),
        }

    def many(self, table: pa.Table) -> dict[str, Answers]:
        """Ways that take tables."""
        file, sink = self.folder / "m.parquet", io.BytesIO()
        pq.write_table(table, file)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        answered = pa.ipc.open_stream(self.post("/match_many?unique=true", sink.getvalue())).read_all()
        return {
            "match_many": self.index.match_many(table, unique=True).to_pylist(),
            "batches": [
                keys
                for batch in table.to_batches(max_chunksize=2)
                for keys in self.index.match_many(batch, unique=True).to_pylist()
            ],
            "client's match_many": self.client.match_many(table, unique=True).to_pylist(),
            "POST /match_many of Arrow": list(map(sorted, answered["keys"].to_pylist())),
            "Parquet": answers(done("match", self.folder / "index", file, "--unique")),
        }

    def in_json(self, message: dict[str, Any]) -> dict[str, Any]:
        found = {name: as_json(each, is_text=self.is_declared) for name, each in message.items()}
        return {**found, "now()": {"timestamp": _NOW.isoformat()}}

    def command(self, name: str, rows: bytes) -> Answers:
        (self.folder / name).write_bytes(rows)
        return answers(done("match", self.folder / "index", self.folder / name, "--unique"))

    def post(self, path: str, body: Any) -> Any:
        return posted(f"{self.url}{path}", body, ARROW_STREAM if isinstance(body, bytes) else "application/json")


def _cells(line: dict[str, Any]) -> dict[str, Any]:
    """The attributes as cells: of texts, only quotes keep those that look like something else."""
    return {
        name: json.dumps(value) if isinstance(value, str | bool) else value
        for name, value in line["attributes"].items()
    }


@pytest.fixture(scope="module", params=[("rarest", False), ("balanced", True)], ids=["rarest", "balanced, declared"])
def ways(request, tmp_path_factory):
    layout, is_declared = request.param
    folder = tmp_path_factory.mktemp("ways")
    declared = {name: kind for name, (kind, _) in VALUES.items()} if is_declared else None
    index: TagMatch[Any] = TagMatch(folder / "index", layout=layout, attributes=declared, threads=1, device="cpu")
    index.add_sets([["t"]] * len(WHERE), range(len(WHERE)), where=WHERE)
    index.consolidate()
    with index, serving(index, config()) as service, connect(service.url) as client:
        yield Ways(index, client, service.http.url, folder, is_declared)


@given(messages=MESSAGES, data=st.data())
def test_messages_of_each_type_have_the_oracles_answers(ways, messages, data):
    full = [{**each, "now()": _NOW} for each in messages]
    expected = [[key for key, tree in enumerate(TREES) if evaluate(tree, ("t",), each)] for each in full]
    found = ways.single(messages) | ways.many(as_table(messages, data.draw, is_text=ways.is_declared))
    assert {way: each for way, each in found.items() if each != expected} == {}


@pytest.mark.parametrize(
    ("value", "arrow"),
    [
        ([[1]], pa.array([[[1]]])),
        (2**63, pa.array([2**63], pa.uint64())),
        ([1, 2**64 - 1], pa.array([[1, 2**64 - 1]], pa.list_(pa.uint64()))),
        ({"timestamp": "2026-10-25T10:00:00"}, pa.array([datetime(2026, 10, 25)], pa.timestamp("us"))),
        ({"timestamp": "2026-10-25T25:00:00Z"}, None),
        ({"date": "2026-02-29"}, None),
        ({"version": "1.x"}, None),
        ([{"ip": "::1"}, {"ip": "10.0.0.256"}], None),
        ({"decimal": "1e99999"}, None),
        ({"eur": 1}, None),
        ({"version": 1}, None),
    ],
    ids=str,
)
def test_values_that_no_way_takes(ways, value, arrow):
    """Each says which attribute has it."""
    row = {"tags": ["t"], "attributes": {"other": value}}
    column = pa.array([value]) if arrow is None else arrow
    table = pa.table({"tags": [["t"]], "other": column})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for ask in (
        partial(ways.index.match, ["t"], row["attributes"]),
        partial(ways.client.match, ["t"], row["attributes"]),
        partial(ways.index.match_many, table),
        partial(ways.client.match_many, table),
        partial(ways.post, "/match", row),
        partial(ways.post, "/match_many", [row]),
        partial(ways.post, "/match_many", sink.getvalue()),
    ):
        with pytest.raises((ValueError, TypeError), match=r"""(attribute|column) ["']other["']"""):
            ask()
    pq.write_table(table, ways.folder / "m.parquet")
    files = {
        "m.jsonl": as_json_lines([row]),
        "c.jsonl": as_json_lines([{"tags": ["t"], "other": value}]),
        "m.csv": as_csv([row]),
        "c.csv": as_csv([{"tags": ["t"], "other": value}]),
    }
    if value == {"eur": 1}:  # a cell without a type has any text
        del files["c.csv"]
    for name, text in files.items():
        (ways.folder / name).write_bytes(text)
    for name in [*files, "m.parquet"]:
        said = refused("match", ways.folder / "index", ways.folder / name)
        assert "other" in said, said


def test_phrases_in_texts_and_in_lists_of_words(tmp_path):
    """Words of one text follow each other; the items of a list are separate texts."""
    declared = {"attributes": {"title": "string"}, "analyzers": {"title": "casefold(words())"}}
    folder, where = tmp_path / "index", ['title phrase "red bike"', 'title = "BIKE"', 'not title in {"red", "blue"}']
    given = ["A red Bike", "bike, red", ["red", "bike"], ["my red", "bike"], ["Red bike", None], [], None]
    expected = [[0, 1], [1], [1], [1], [0, 1], [2], [2]]
    index: TagMatch[Any] = TagMatch(folder, device="cpu", threads=1, **declared)
    index.add_sets([["t"]] * 3, range(3), where=where)
    index.consolidate()
    with index, serving(index, config()) as service, connect(service.url) as client:
        ways = Ways(index, client, service.http.url, tmp_path, is_declared=True)
        found = {"": ways.single([{"title": each} for each in given])}
        for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
            texts, lists = pa.array(given[:2], kind), pa.array(given[2:], pa.list_(kind))
            one, several = (
                ways.many(pa.table({"tags": [["t"]] * len(each), "title": each})) for each in (texts, lists)
            )
            found[str(kind)] = {way: one[way] + several[way] for way in one}
    assert [(kind, way, each) for kind in found for way, each in found[kind].items() if each != expected] == []


# -- conditions, in each form ------------------------------------------------------------------------------------------

_FIELDS = {bool: "bool", int: "int", float: "float", str: "text"}


def _constraint(test: Test) -> dict[str, Any]:
    """A test as a struct, with its operands in fields of their types."""
    values = [as_json(each, is_text=False) for each in test.operands]
    values = [each if isinstance(each, dict) else {_FIELDS[type(each)]: each} for each in values]
    return {"attr": test.attribute, "op": test.operator, "values": values}


def test_subscriptions_of_each_type_are_the_same(tmp_path):
    """Conditions in text, and in structs, by Python, commands, Flight and HTTP."""
    trees = [each for each in TREES if isinstance(each, Test) and each.operator in ("in", "not in")]
    trees = [each for each in trees if not any(hasattr(value, "prefixlen") for value in each.operands)]
    where = [text_of(each, random.Random(number)) for number, each in enumerate(trees)]
    texts = [{"key": key, "tags": ["t"], "where": each} for key, each in enumerate(where)]
    structs = [{"key": key, "tags": ["t"], "constraints": [_constraint(each)]} for key, each in enumerate(trees)]
    with TagMatch(device="cpu", threads=1) as index:
        index.add_sets([["t"]] * len(where), range(len(where)), where=where)
        index.consolidate()
        expected = dict(index)
    assert len(expected) == len(where)
    for rows in (texts, structs):
        for kind in ("jsonl", "csv", "parquet"):
            path = tmp_path / f"rows.{kind}"
            done("build", write(path, rows), tmp_path / "index", "--overwrite")
            with TagMatch.open(tmp_path / "index", device="cpu") as index:
                assert dict(index) == expected, kind
        table = pq.read_table(tmp_path / "rows.parquet")
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        lines = as_json_lines(rows)
        for give in (
            lambda local, _, __, table=table: local.add_subscriptions(table),
            lambda _, client, __, table=table: client.add_subscriptions(table),
            lambda _, __, url, rows=rows: posted(f"{url}/subscriptions", rows),
            lambda _, __, url, lines=lines: posted(f"{url}/subscriptions", lines, "application/x-ndjson"),
            lambda _, __, url, sink=sink: posted(f"{url}/subscriptions", sink.getvalue(), ARROW_STREAM),
        ):
            with TagMatch(device="cpu", threads=1) as index, serving(index, config()) as service:
                with connect(service.url) as client:
                    give(index, client, service.http.url)
                index.consolidate()
                assert dict(index) == expected
