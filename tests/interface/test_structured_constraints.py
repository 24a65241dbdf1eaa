"""Constraints as structs give what the same expressions give, in each shape in which a table may have them."""

import math
import random
from datetime import date, datetime
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracle import OPERATORS
from support import filters, strategies
from support.agreement import index_of

from tagmatch import InvalidTypeError, InvalidValueError, TagMatch, Version
from tagmatch_bench.workloads.content import Content, ContentOptions, where_texts

#: What a field may be called that has values of this type alone
FIELDS = {bool: "bool", int: "int", float: "float", str: "text", date: "date", datetime: "timestamp"}
FIELDS |= {Decimal: "decimal", Version: "version", IPv4Address: "ip", IPv6Address: "ip"}
WRITTEN = ("date", "timestamp", "decimal", "version", "ip")
TYPED = pa.struct({
    "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_(),
    **dict.fromkeys(WRITTEN, pa.string()),
})  # fmt: skip

#: A test, or `exists` negated: all that has a form as a struct
CONSTRAINTS = filters.tests.filter(
    lambda test: not any(hasattr(each, "prefixlen") for each in test.operands)
) | st.builds(lambda attribute: filters.Not(filters.Test(attribute, "exists", ())), filters.attribute_names)
ROWS = st.lists(st.tuples(st.sets(filters.tags, max_size=2), st.lists(CONSTRAINTS, max_size=4)), min_size=1, max_size=6)


def parts_of(tree: Any) -> tuple[str, str, tuple[Any, ...]]:
    test = tree.part if isinstance(tree, filters.Not) else tree
    return test.attribute, "not exists" if tree is not test else test.operator, test.operands


def shape_of(operator: str) -> str:
    return "none" if operator == "not exists" else OPERATORS[operator].operands


def typed(value: Any) -> dict[str, Any]:
    field = FIELDS[type(value)]
    return {field: str(value) if field in WRITTEN else value}


def as_typed_fields(tree: Any, pairs_in_lists: bool) -> dict[str, Any]:
    """The first operand in the field of its type, others in structs."""
    attribute, operator, operands = parts_of(tree)
    record: dict[str, Any] = {"attr": attribute, "op": operator}
    if shape_of(operator) == "list" or (shape_of(operator) == "two" and pairs_in_lists):
        return {**record, "values": [typed(value) for value in operands]}
    if operands:
        record |= typed(operands[0])
    return {**record, "upper": typed(operands[1])} if shape_of(operator) == "two" else record


TYPED_FIELDS = pa.struct(
    [("attr", pa.string()), ("op", pa.string()), *TYPED, ("upper", TYPED), ("values", pa.list_(TYPED))]
)


def with_typed_fields(rows: list[list[Any]], choices: random.Random) -> pa.Array:
    records = [[as_typed_fields(tree, choices.random() < 0.5) for tree in row] for row in rows]
    return pa.array(records, pa.list_(TYPED_FIELDS))


def is_in_arrow(value: Any) -> bool:
    """Whether a field of a union has such values."""
    if isinstance(value, Decimal):
        return abs(value) < 10**40 and value.as_tuple().exponent >= -30
    return type(value) in KINDS


def with_unions(rows: list[list[Any]], choices: random.Random) -> pa.Array:
    mode = choices.choice(["dense", "sparse"])
    tests = [parts_of(tree) for row in rows for tree in row]
    offsets = [sum(map(len, rows[:row])) for row in range(len(rows) + 1)]
    several = [operands if shape_of(operator) == "list" else () for _, operator, operands in tests]
    ends = [sum(map(len, several[:row])) for row in range(len(several) + 1)]
    columns = {
        "attr": pa.array([attribute for attribute, *_ in tests], pa.string()).dictionary_encode(),
        "op": pa.array([operator for _, operator, _ in tests], pa.string()).dictionary_encode(),
        "value": union_of(
            [each[2][0] if each[2] and not more else None for each, more in zip(tests, several, strict=True)], mode
        ),
        "upper": union_of([each[2][1] if shape_of(each[1]) == "two" else None for each in tests], mode),
        "values": pa.LargeListArray.from_arrays(ends, union_of([value for more in several for value in more], mode)),
    }
    return pa.LargeListArray.from_arrays(offsets, pa.StructArray.from_arrays(list(columns.values()), list(columns)))


KINDS: dict[type, pa.DataType] = {
    int: pa.int64(), float: pa.float64(), str: pa.large_string(), bool: pa.bool_(), type(None): pa.null(),
    date: pa.date32(), datetime: pa.timestamp("us", "Europe/Rome"), Decimal: pa.decimal256(76, 30),
}  # fmt: skip


def union_of(values: list[Any], mode: str) -> pa.Array:
    kinds = [*KINDS]
    codes = pa.array([kinds.index(type(value)) for value in values], pa.int8())
    fields = [*KINDS.values()]
    if mode == "sparse":
        children = [
            pa.array([value if type(value) is kind else None for value in values], field)
            for kind, field in zip(kinds, fields, strict=True)
        ]
        return pa.UnionArray.from_sparse(codes, children)
    of_kind = [[value for value in values if type(value) is kind] for kind in kinds]
    places = [sum(type(other) is type(value) for other in values[:at]) for at, value in enumerate(values)]
    children = [pa.array(some, field) for some, field in zip(of_kind, fields, strict=True)]
    return pa.UnionArray.from_dense(codes, pa.array(places, pa.int32()), children)


@pytest.mark.parametrize("shape", [with_typed_fields, with_unions])
@strategies.fewer(2)
@given(rows=ROWS, spelling=filters.spellings, data=st.data())
def test_the_same_sets_as_those_of_expressions(shape: Any, rows: Any, spelling: random.Random, data: Any) -> None:
    """In one chunk or several; the first may have other rows before."""
    if shape is with_unions:
        assume(all(is_in_arrow(each) for _, tests in rows for tree in tests for each in parts_of(tree)[2]))
    trees = [tests for _, tests in rows]
    constraints = shape([trees[0], *trees], spelling)[1:]
    where = [filters.text_of(filters.And(tuple(tests)), spelling) if tests else None for tests in trees]
    table = pa.table({"key": range(len(rows)), "tags": [list(tags) for tags, _ in rows], "constraints": constraints})
    if spelling.random() < 0.3:  # its columns begin within their memory
        lists = [list(tags) for tags, _ in rows]
        table = pa.record_batch({"key": [*range(len(rows))], "tags": pa.array(lists), "constraints": constraints})
    elif spelling.random() < 0.3:
        table = pa.concat_tables([table[:1], table[1:]])
    with TagMatch(device="cpu", threads=2) as tm, TagMatch(device="cpu") as other:
        tm.add_subscriptions(table)
        other.add_sets([list(tags) for tags, _ in rows], range(len(rows)), where=where)
        for each in (tm, other):
            each.consolidate()
        # Columns have no normal form: of several tests of an attribute, expressions leave out those that others imply
        names = [[parts_of(tree)[0] for tree in tests] for tests in trees]
        if all(len(set(each)) == len(each) for each in names):
            assert dict(tm) == dict(other)
        for tree in [each for tests in trees for each in tests]:
            tags, attributes = data.draw(filters.messages(tree))
            assert tm.match_unique(tags, attributes) == {
                key
                for key, (wanted, tests) in enumerate(rows)
                if wanted <= tags and all(filters.evaluate(test, tags, attributes) for test in tests)
            }


@pytest.mark.slow
@pytest.mark.parametrize("strings", [0.0, 0.5])
def test_the_workload(strings: float) -> None:
    """As it is generated, by many threads at once, against its own text form."""
    options = ContentOptions(interfaces=4, min_filters=5000, max_filters=5000, strings=strings, between=25.0)
    table = Content(options).subscriptions(0, 20_000, threads=2)
    where = where_texts(table["constraints"].combine_chunks())[:500]
    with TagMatch(device="cpu", threads=4) as tm:
        tm.add_subscriptions(table)
        tm.consolidate()
        stored = dict(tm)
    assert len(stored) > 19_000
    with index_of(table["tags"][:500], table["key"][:500], where=where, device="cpu") as other:
        assert all(set(keys) <= set(stored[row]) for row, keys in other)


def test_expressions_and_constraints_both_hold() -> None:
    with TagMatch(device="cpu") as tm:
        one, others = ([{"attr": "z", "op": operator, "value": 1}] for operator in ("=", "!="))
        where = ["x < 10 or y = 1", None, "x > 5", None]
        columns = {"key": [1, 2, 3, 4], "tags": [["a"], [], [], []], "where": where}
        table = pa.table({**columns, "constraints": [one, others, [], None]})
        tm.add_subscriptions(table)
        tm.consolidate()
        assert tm.match_unique(["a"], {"x": 9, "z": 1}) == {1, 3, 4}
        assert tm.match_unique(["a"], {"x": 11, "z": 1}) == {3, 4}
        assert tm.match_unique(["a"], {"y": 1, "z": [1, 2]}) == {1, 2, 4}
        assert tm.match_unique(["a"], {"x": 9}) == {3, 4}
        tm.remove_subscriptions(table)
        tm.consolidate()
        assert dict(tm) == {}


def test_lists_of_no_values_and_of_very_many() -> None:
    many = [(number * 7919) % 5000 for number in range(10_000)]
    rows = [[{"attr": "x", "op": operator, "values": values}] for operator in ("in", "not in") for values in ([], many)]
    with TagMatch(device="cpu") as tm:
        tm.add_subscriptions(pa.table({"key": range(4), "constraints": rows}))
        tm.consolidate()
        assert tm.match_unique([], {"x": 4999}) == {1, 2}
        assert tm.match_unique([], {"x": 5000}) == {2, 3}
        assert tm.match_unique([], {}) == set()


def of(operator: str | None, **fields: Any) -> dict[str, Any]:
    return {"attr": "x", "op": operator, **fields}


GOOD = of("<", value=1)
BAD: list[tuple[Any, str]] = [
    (of("==", value=1), "there is no operator '=='; there are = != <"), (of(None, value=1), "field 'op' is null"),
    ({**GOOD, "attr": None}, "field 'attr' is null"), ({**GOOD, "attr": "a\0"}, "must not contain U\\+0000"),
    ({**GOOD, "attr": ""}, "name of an attribute must not be empty"), (None, "is null; leave it out"),
    (of("="), "= needs one value, in one of the fields value, int, float, text, bool"),
    (of("=", value=1, text="1"), "several values are given, but"), (of("=", value=1, upper=1), "= needs one value"),
    (of("=", value=1, values=[1]), "= needs one value"), (of("exists", value=1), "exists needs no value"),
    (of("not exists", text=""), "not exists needs no value"),
    (of("in", value=1), "in needs a list of values, in the field 'values'"),
    (of("not in", value=1, values=[1]), "not in needs a list of values"),
    (of("in", values=[1, None]), "'values' holds a null where a value must be"),
    (of("between", value=1), "between needs two values, in the fields 'value' and 'upper'"),
    (of("between", values=[1, 2, 3]), "between needs two values"),
    (of("between", values=[10, 5]), "no value is between 10 and 5"),
    (of("between", float=1.5, upper=1), "no value is between 1.5 and 1"),
    (of("between", text="a", upper=1), 'between needs two values of one type: "a" and 1'),
    (of("between", bool=True, upper=1), "true has no order"), (of("prefix", value=1), "prefix needs a text, not 1"),
    (of(">", bool=False), "false has no order: compare it with = or !="),
    (of("contains", bool=True), "contains needs a text, not true"),
    (of("=", float=math.nan), "NaN cannot be written"), (of("<=", float=math.nan), "NaN cannot be written"),
]  # fmt: skip


@pytest.mark.parametrize(("constraint", "message"), BAD, ids=range(len(BAD)))
def test_mistakes(constraint: Any, message: str) -> None:
    """They are named by row and place, with the remedy, and nothing is staged, with any rows before and after."""
    kind = pa.struct({
        "attr": pa.string(), "op": pa.string(), "value": pa.int64(), "upper": pa.int64(),
        "values": pa.list_(pa.int64()), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_(),
    })  # fmt: skip
    for before in (0, 3):
        rows = pa.array([[GOOD], None, [*[GOOD] * before, constraint, GOOD], [constraint]], pa.list_(kind))
        with TagMatch(device="cpu") as tm:
            with pytest.raises((InvalidTypeError, InvalidValueError), match=message) as caught:
                tm.add_subscriptions(pa.table({"key": range(4), "constraints": rows}), match_all=True)
            assert str(caught.value).startswith(f"constraints: row 2, constraint {before}")
            assert tm.stats()["staged"] == 0


GREAT = pa.struct({"attr": pa.string(), "op": pa.string(), "value": pa.uint64()})
BAD_COLUMNS = [
    (pa.array([1]), "constraints must be lists of structs with attr, op, value, …, not int64"),
    (pa.array([[1]]), "constraints must be lists of structs"),
    (pa.array([[{"attr": "x", "value": 1}]]), "need a field 'op', not only attr, value"),
    (pa.array([[{**GOOD, "path": 1}]]), "have fields attr, op, value, .*, not 'path'"),
    (pa.array([[{**GOOD, "attr": 1}]]), "field 'attr' must be strings, not int64"),
    (pa.array([[{**GOOD, "values": 1}]]), "field 'values' must be lists of values, not int64"),
    (pa.array([[{**GOOD, "value": [1]}]]), "field 'value' has values of list<.*>, but these are bools"),
    (pa.array([[GOOD, {**GOOD, "value": 2**63}]], pa.list_(GREAT)),
     "row 0, constraint 1, field 'value', has 9223372036854775808, which must be at most"),
]  # fmt: skip


@pytest.mark.parametrize(("constraints", "message"), BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
def test_columns_that_have_no_constraints(constraints: Any, message: str) -> None:
    with TagMatch(device="cpu") as tm:
        with pytest.raises((InvalidTypeError, InvalidValueError), match=message):
            tm.add_subscriptions(pa.table({"key": [1], "constraints": constraints}))
        assert tm.stats()["staged"] == 0
