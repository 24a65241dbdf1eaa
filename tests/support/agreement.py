"""Gives the library and the oracle the same changes and compares their answers."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from oracle import Oracle
from support.conditions import Expression, Message, condition_of, conditions_in, in_tables

from tagmatch import TagMatch, Where
from tagmatch.model.records import Alternative
from tagmatch.reasons import Reasons

KEY_TYPES = {"integer": pa.uint64(), "string": pa.large_string()}


def index_of(
    tags: Any, keys: Any, path: Any = None, *, where: Any = None, area: Any = None, expires: Any = None, **options: Any
) -> TagMatch[Any]:
    tm: TagMatch[Any] = TagMatch(path, **options)
    tm.add_sets(tags, keys, where=where, area=area, expires=expires)
    tm.consolidate()
    return tm


def loaded(pairs: Iterable[tuple[Iterable[str], Any]], **options: Any) -> tuple[TagMatch[Any], Oracle]:
    """Both, with these (tags, key) pairs stored."""
    sets, keys = zip(*pairs, strict=True)
    tm, oracle = TagMatch(**options), Oracle()
    for database in (tm, oracle):
        database.add_sets(sets, keys)
        database.consolidate()
    return tm, oracle


def change_all(changes: Iterable[tuple[bool, Iterable[str], Any]], *databases: Any) -> None:
    """Make changes, each an addition or a removal of a key of a set, in several databases, and consolidate these."""
    for added, tags, key in changes:
        for database in databases:
            (database.add_set if added else database.remove_set)(tags, key)
    for database in databases:
        database.consolidate()


def assert_keys(answers: pa.ListArray, expected: Sequence[list[Any]], key_type: str = "integer") -> None:
    """The answers of `match_many` are these, each in any order."""
    assert isinstance(answers, pa.ListArray)
    assert answers.type == pa.list_(KEY_TYPES[key_type])
    assert answers.null_count == answers.values.null_count == 0
    assert [sorted(keys) for keys in answers.to_pylist()] == expected


def assert_records(tm: TagMatch[Any], oracle: Oracle) -> None:
    """What an index says of its keys, one by one and of all, is what the oracle says."""
    found, expected = list(tm.records.values()), oracle.records()
    assert sorted(record.key for record in found) == sorted(tm.records) == sorted(expected)
    for record in found:
        given, sets, data = expected[record.key]
        assert record == tm.get(record.key)
        assert record.key in tm.records
        assert record.data == data
        if given is not None:
            ((_, at),) = {(None, at) for _, at in sets}
            assert (record.tags, record.where, record.area, record.expires) == (*given, at)
        else:
            assert {(_row_of(each), each.expires) for each in record.alternatives} == sets
            assert len(record.alternatives) == len(sets)


def assert_data(tm: TagMatch[Any], oracle: Oracle, query: list[str], names: list[str]) -> None:
    """Data that comes with answers is that of the records."""
    data = {key: put for key, (_, _, put) in oracle.records().items()}
    expected = [{"key": key, **{name: data[key].get(name) for name in names}} for key in oracle.match(query)]
    (found,) = tm.match_many([query], columns=names).to_pylist()
    assert sorted(found, key=lambda each: each["key"]) == expected
    assert sorted(tm.match(query, columns=names), key=lambda each: each["key"]) == expected


def assert_only(tm: Any, oracle: Oracle, only: Expression, message: Message, **at: Any) -> None:
    """Every way to ask for only some of the keys gives the oracle's answer."""
    query = message if message.attributes else message[:1]
    found = oracle.explain(*message, only=only.tree, **at)
    expected = sorted(key for _, keys in found for key in keys)
    assert sorted(tm.match(*query, only=only, **at)) == expected
    assert tm.match_unique(*query, only=only, **at) == set(expected)
    assert_numbers(tm, expected, *query, only=only, **at)
    assert dict(tm.explain(*query, only=only, **at)) == dict(found)
    assert sorted(tm.submit(*query, only=only, **at).result(60)) == expected
    for key in expected[:1]:
        assert tm.explain(*query, only=only, key=key, **at).matches
    if not message.attributes and not at:
        assert_only_many(tm, oracle, only, message.tags)


def assert_only_many(tm: Any, oracle: Oracle, only: Expression, tags: list[str]) -> None:
    """The same of the calls that take many messages."""
    expected = oracle.match(tags, only=only.tree)
    assert [sorted(keys) for keys in tm.match_many([tags, tags], only=only).to_pylist()] == [expected, expected]
    assert tm.match_many([tags], unique=True, only=only).to_pylist() == [sorted(set(expected))]
    assert tm.match_counts([tags], only=only).to_pylist() == [len(expected)]
    assert tm.match_counts([tags], unique=True, only=only).to_pylist() == [len(set(expected))]
    assert tm.match_exists_many([tags], only=only).to_pylist() == [bool(expected)]
    (highlights,) = tm.match_highlights([tags], only=only).to_pylist()
    assert sorted(each["key"] for each in highlights) == expected
    ranks = {key: oracle.data_of(key).get("rank") for key in expected}
    best = sorted(ranks, key=lambda key: (ranks[key] is None, ranks[key] or 0, key))
    assert tm.match_best([tags], limit=3, order_by="rank", only=only).to_pylist() == [best[:3]]


def _row_of(each: Alternative) -> frozenset[str]:
    return each.tags | conditions_in(each.where) | ({condition_of(each.area)} if each.area is not None else set())


def assert_agree(tm: TagMatch[Any], oracle: Oracle, queries: Sequence[list[str] | Message]) -> None:
    """Every way to ask gives the oracle's answer."""
    tm.check()
    assert len(tm) == len(oracle)
    assert dict(tm) == dict(oracle)
    messages = [query if isinstance(query, Message) else Message(query, {}) for query in queries]
    expected = [oracle.match(*message) for message in messages]
    asked = [(numbers, table) for numbers, table in in_tables(messages) if table.num_columns > 1]
    plain = [number for number, message in enumerate(messages) if not message.attributes]
    for numbers, chosen in [(plain, [messages[number].tags for number in plain]), *asked]:
        assert_many(tm, chosen, [expected[number] for number in numbers])
    for message, keys in zip(messages, expected, strict=True):
        query = message if message.attributes else message[:1]
        assert sorted(tm.match(*query)) == keys
        assert tm.match_unique(*query) == set(keys)
        assert_numbers(tm, keys, *query)
        assert_reasons(tm, oracle, keys, *query)
        assert (message.tags in tm) == (message.tags in oracle)
        explained = tm.explain(*query)
        assert dict(explained) == dict(oracle.explain(*query))
        assert len(explained) == len(dict(explained))


def assert_numbers(tm: TagMatch[Any], expected: list[Any], *query: Any, **at: Any) -> None:
    """A query has the number of these keys, also if each counts once."""
    assert tm.match_count(*query, **at) == len(expected)
    assert tm.match_count(*query, **at, unique=True) == len(set(expected))
    assert tm.match_exists(*query, **at) is bool(expected)


def assert_reasons(tm: TagMatch[Any], oracle: Oracle, expected: list[Any], *query: Any, **at: Any) -> None:
    """For some keys, as many of their sets hold as the query gets them."""
    stored = dict(oracle)
    for key in {*expected[:1], *(keys[0] for keys in list(stored.values())[:1])}:
        found = tm.explain(*query, **at, key=key)
        assert sum(each.holds for each in found.alternatives) == expected.count(key)
        assert found.matches is (key in expected)
        assert len(found.alternatives) == sum(key in keys for keys in stored.values())
        for each in found.alternatives:
            assert each.holds is all(test.holds for test in each.tests)
            assert all((test.why is None) is test.holds for test in each.tests)
        assert Reasons.of_dict(json.loads(json.dumps(found.to_dict()))) == found
        assert str(found).count("\n    fails") == sum(
            not test.holds for each in found.alternatives for test in each.tests
        )


def assert_highlights(tm: TagMatch[Any], queries: Any, expected: Sequence[list[Any]], key_type: str) -> None:
    """Each key comes with the content of a set that has it, and each set once for a query and a key."""
    found, stored = tm.match_highlights(queries), {(frozenset(tags), key) for tags, keys in tm for key in keys}
    texts = pa.list_(pa.string())
    assert found.type == pa.list_(pa.struct({"key": KEY_TYPES[key_type], "tags": texts, "tests": texts}))
    for row, keys in zip(found.to_pylist(), expected, strict=True):
        assert sorted(each["key"] for each in row) == keys
        sets = {(frozenset([*each["tags"], *map(Where, each["tests"])]), each["key"]) for each in row}
        assert len(sets) == len(row)
        assert sets <= stored


def assert_many(tm: TagMatch[Any], queries: Any, expected: Sequence[list[Any]]) -> None:
    """All forms of `match_many` give these keys, which are sorted, or tell how many they are."""
    counts, once, key_type = tm.match_counts(queries), tm.match_counts(queries, unique=True), tm.stats()["key_type"]
    assert counts.type == once.type == pa.uint64()
    assert counts.to_pylist() == [len(keys) for keys in expected]
    assert once.to_pylist() == [len(set(keys)) for keys in expected]
    assert_highlights(tm, queries, expected, key_type)
    assert tm.match_exists_many(queries).equals(pa.array([len(keys) > 0 for keys in expected], pa.bool_()))
    assert_keys(tm.match_many(queries), expected, key_type)
    once = tm.match_many(queries, unique=True)
    assert_keys(once, [sorted(set(keys)) for keys in expected], key_type)
    assert once.to_pylist() == [sorted(set(keys)) for keys in expected]
