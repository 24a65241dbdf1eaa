"""Predicates of Vespa, rules in JSON, and queries that Elasticsearch's own builders make."""

import json
import operator
from collections.abc import Callable
from typing import Any

import pytest
from elasticsearch import dsl
from hypothesis import given
from hypothesis import strategies as st
from support.percolator import Percolator

from tagmatch import TagMatch, importing

# -- predicates: trees, their text, and what they hold for ------------------------------------------------------------

Tree = tuple[Any, ...]
NAMES = ("gender", "age", "in", "a b")
TEXTS = ("male", "it's", 'a"b', "x\\y", "20", "é")
sets = st.tuples(st.just("set"), st.sampled_from(NAMES), st.booleans(), st.lists(st.sampled_from(TEXTS), min_size=1))
ends = st.none() | st.integers(-3, 3)
ranges = st.tuples(st.just("range"), st.sampled_from(NAMES), st.booleans(), ends, ends)
leaves: st.SearchStrategy[Tree] = st.one_of(sets, ranges, st.tuples(st.sampled_from(["true", "false"])))
trees = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), st.lists(parts, min_size=1, max_size=3)),
        st.tuples(st.just("not"), parts),
    ),
    max_leaves=8,
)
messages = st.dictionaries(
    st.sampled_from(NAMES), st.lists(st.sampled_from(TEXTS) | st.integers(-4, 4), min_size=1, max_size=2)
)


def word(text: str, quote: str) -> str:
    if text.isalnum() and text.isascii() and text != "in":
        return text
    return quote + text.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote


def written(tree: Tree) -> str:
    match tree:
        case ("set", name, is_negated, [text]):
            return f"{word(name, chr(34))} {'not ' * is_negated}in {word(text, chr(39))}"
        case ("set", name, is_negated, texts):
            return f"{word(name, chr(39))} {'not ' * is_negated}in [{', '.join(word(each, chr(34)) for each in texts)}]"
        case ("range", name, is_negated, low, high):
            low, high = ("" if end is None else end for end in (low, high))
            return f"{word(name, chr(39))} {'not ' * is_negated}in [{low}..{high}]"
        case ("not", part):
            return f"not ({written(part)})"
        case (("and" | "or") as gate, parts):
            return f" {gate} ".join(f"({written(part)})" for part in parts)
    return str(tree[0])


def holds(tree: Tree, message: dict[str, list[Any]]) -> bool:
    match tree:
        case ("set", name, is_negated, texts):
            return bool(set(texts) & set(message.get(name, ()))) != is_negated
        case ("range", name, is_negated, low, high):
            numbers = [each for each in message.get(name, ()) if isinstance(each, int)]
            low, high = -(2**63) if low is None else low, 2**63 if high is None else high
            return any(low <= each <= high for each in numbers) != is_negated
        case ("not", part):
            return not holds(part, message)
        case ("and", parts):
            return all(holds(part, message) for part in parts)
        case ("or", parts):
            return any(holds(part, message) for part in parts)
    return bool(tree == ("true",))


def found(take: Callable[[Any], dict[str, Any]], document: Any, messages: list[dict[str, Any]]) -> list[bool]:
    """Whether each message satisfies a document; none does if it is refused for that."""
    with TagMatch(key_type="string", device="cpu") as tm:
        try:
            tm.put(**take(document))
        except importing.NotTakenError as error:
            if "no message can satisfy it" not in str(error):
                raise
        tm.consolidate()
        return [tm.match_exists([], message) for message in messages]


@given(trees, st.lists(messages, max_size=4))
def test_predicates_hold_for_the_same_messages(tree, some):
    document = {"put": "id:ads:ad::1", "fields": {"target": written(tree)}}
    assert found(importing.vespa, document, some) == [holds(tree, message) for message in some]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("gender in ['Female'] and age in [20..30] and pos in [1..4]",
         'gender = "Female" and age between 20 and 30 and pos between 1 and 4'),
        ("gender not in [male, 'not known'] or not (age in [..17])",
         'not gender in {"male", "not known"} or not age <= 17'),
        (r"name in 'caf\xe9\n'", 'name = "café\\n"'),
        ("a in [-5..] or a in [ .. +7 ]", "a >= -5 or a <= 7"),
        ("(a in b or true) and c in d", 'c = "d"'),
    ],
)  # fmt: skip
def test_texts_of_predicates(text, where):
    assert importing.vespa({"id": "1", "fields": {"target": text}})["where"] == where


@pytest.mark.parametrize(
    ("text", "column"),
    [("age in [20..", 11), ("age = 5", 5), ("not age in [1..2]", 5), ("", 1), ("a in [1..2] and", 16)],
)
def test_predicates_with_mistakes(text, column):
    with pytest.raises(importing.NotTakenError, match=rf"^fields\.target: column {column}: this is no") as error:
        importing.vespa({"id": "1", "fields": {"target": text}})
    assert error.value.kind == "syntax"


# -- rules -------------------------------------------------------------------------------------------------------------

COMPARED = {
    "equal": operator.eq, "notEqual": operator.ne, "lessThan": operator.lt, "lessThanInclusive": operator.le,
    "greaterThan": operator.gt, "greaterThanInclusive": operator.ge,
    "in": lambda fact, value: fact in value, "notIn": lambda fact, value: fact not in value,
}  # fmt: skip
facts = st.sampled_from(["fouls", "age"])
conditions = st.recursive(
    st.one_of(
        st.fixed_dictionaries(
            {"fact": facts, "operator": st.sampled_from([*COMPARED][:6]), "value": st.integers(0, 4) | st.just(2.5)}
        ),
        st.fixed_dictionaries(
            {"fact": facts, "operator": st.sampled_from([*COMPARED][6:]), "value": st.lists(st.integers(0, 4))}
        ),
        st.fixed_dictionaries(
            {
                "fact": st.just("labels"),
                "operator": st.sampled_from(["contains", "doesNotContain"]),
                "value": st.sampled_from(["a", "b"]),
            }
        ),
    ),
    lambda parts: st.one_of(
        st.fixed_dictionaries({"all": st.lists(parts, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"any": st.lists(parts, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"not": parts}),
    ),
    max_leaves=6,
)


def triggers(condition: dict[str, Any], message: dict[str, Any]) -> bool:
    if "all" in condition:
        return all(triggers(part, message) for part in condition["all"])
    if "any" in condition:
        return any(triggers(part, message) for part in condition["any"])
    if "not" in condition:
        return not triggers(condition["not"], message)
    fact, name, value = message[condition["fact"]], condition["operator"], condition["value"]
    if condition["fact"] == "labels":
        return (value in fact) == (name == "contains")
    return bool(COMPARED[name](fact, value))


@given(
    conditions,
    st.lists(
        st.fixed_dictionaries(
            {"fouls": st.integers(-1, 5), "age": st.integers(0, 4), "labels": st.lists(st.sampled_from("abc"))}
        ),
        max_size=4,
    ),
)
def test_rules_trigger_for_the_same_facts(condition, some):
    rule = {"name": "out", "conditions": condition}
    assert found(importing.rules, rule, some) == [triggers(condition, message) for message in some]


RULES = [
    ({"fact": "a", "operator": "startsWith", "value": "x"}, "conditions.all[0].operator"),
    ({"fact": "a", "operator": "equal", "value": {"fact": "b", "params": {"id": 7}}}, "conditions.all[0].value.params"),
    ({"fact": "a", "operator": "in", "value": [{"fact": "b"}, []]}, "conditions.all[0].value[1]"),
    ({"fact": "a", "operator": "equal", "value": [1]}, "conditions.all[0].value"),
    ({"fact": "a", "operator": "lessThan", "value": "x"}, "conditions.all[0].value"),
    ({"fact": "a", "operator": "in", "value": 1}, "conditions.all[0].value"),
    ({"fact": "a", "operator": "equal", "value": 1, "params": {"id": 7}}, "conditions.all[0].params"),
    ({"fact": "a", "operator": "equal", "value": 1, "path": "$..x"}, "conditions.all[0].path"),
    ({"fact": "a", "operator": "equal"}, "conditions.all[0]"),
    ({"fact": "a", "operator": "equal", "valeu": 1}, "conditions.all[0].valeu"),
    ({"condition": "shared"}, "conditions.all[0].condition"),
    ({"any": []}, "conditions.all[0].any"),
    ({"all": [{"fact": "a", "operator": "equal", "value": 1}], "any": []}, "conditions.all[0]"),
    ({"not": {"fact": "a", "operator": "equal", "value": 1}, "fact": "a"}, "conditions.all[0]"),
    (7, "conditions.all[0]"),
]


@pytest.mark.parametrize(("condition", "path"), RULES)
def test_rules_that_are_refused(condition, path):
    with pytest.raises(importing.NotTakenError) as error:
        importing.rules({"name": "out", "conditions": {"all": [condition]}})
    assert str(error.value).partition(": ")[0] == path


def test_facts_are_compared():
    price = {"fact": "price", "operator": "lessThanInclusive", "value": {"fact": "user", "path": "$.budget"}}
    other = {"fact": "city", "operator": "notEqual", "value": {"fact": "home"}}
    rule = {"name": "r", "conditions": {"all": [price, other]}}
    assert importing.rules(rule)["where"] == "price <= user.budget and not city = `home`"
    some: list[dict[str, Any]] = [
        {"price": 9, "user.budget": 9.0, "city": "Nice", "home": "Lyon"},
        {"price": 9, "user.budget": 8, "city": "Nice", "home": "Lyon"},
        {"price": 9, "user.budget": 9, "city": "Nice", "home": "Nice"},
    ]
    assert found(importing.rules, rule, some) == [True, False, False]


def test_paths_and_missing_facts():
    rule = {"name": 7, "conditions": {"all": [
        {"fact": "user", "path": "$.company.name", "operator": "equal", "value": "acme"},
        {"fact": "left", "operator": "equal", "value": None},
    ]}}  # fmt: skip
    row = importing.rules(rule)
    assert row == {"key": "7", "tags": [], "where": 'user.company.name = "acme" and not exists(left)'}
    some: list[dict[str, Any]] = [{"user.company.name": "acme"}, {"user.company.name": "acme", "left": 1}]
    assert found(importing.rules, rule, some) == [True, False]


# -- Elasticsearch's own builders --------------------------------------------------------------------------------------

Q: Any = dsl.Q
BUILT = [
    Q("term", city="Nice") & ~Q("term", sold=True),
    Q("term", city="Nice") | Q("range", price={"lt": 900}),
    ~(Q("term", city="Nice") | Q("term", city="Lyon")),
    Q(
        "bool",
        should=[Q("term", city="Nice"), Q("exists", field="price"), Q("term", sold=True)],
        minimum_should_match=2,
    ),
    Q("bool", filter=[Q("terms", city=["Nice", "Lyon"])], must_not=[Q("range", price={"gte": 100, "lte": 500})]),
    (Q("term", city="Nice") & Q("term", sold=True)) | (Q("prefix", city="L") & Q("match", price=450)),
    Q("constant_score", filter=Q("wildcard", city="*on")),
    Q("match_all"),
    dsl.query.Match("title", {"query": "sunny flat", "operator": "and"}),
    dsl.query.Range("posted", {"gte": "2026-03-15||/M", "lt": "2026-04-15||/M"}),
    dsl.query.TermsSet(
        "labels", {"terms": ["a", "b", "c"], "minimum_should_match_script": {"source": "params.num_terms"}}
    ),
    dsl.query.MultiMatch(query="sunny", fields=["title^2", "body"]),
    dsl.Search().query("match", title="flat").filter("term", city="Lyon").exclude("term", sold=True).query,
]
TYPES = {
    "city": "keyword", "sold": "boolean", "price": "double", "title": "text", "body": "text", "posted": "date",
    "labels": "keyword",
}  # fmt: skip
BUILT_MAPPING = {"properties": {name: {"type": kind} for name, kind in TYPES.items()}}
built_messages = st.fixed_dictionaries(
    {},
    optional={
        "city": st.sampled_from(["Nice", "Lyon", "London"]),
        "sold": st.booleans(),
        "price": st.sampled_from([50.0, 450.0, 900.0]),
        "title": st.sampled_from(["sunny flat", "flat", "house"]),
        "labels": st.lists(st.sampled_from("abc")),
    },
)


@given(st.lists(built_messages, min_size=1, max_size=5))
def test_queries_of_the_builders(some):
    queries = [query.to_dict() for query in BUILT]
    oracle = Percolator(BUILT_MAPPING["properties"])
    with TagMatch() as tm:
        for key, query in enumerate(queries):
            document = json.loads(json.dumps({"_id": str(key), "query": query}))
            row = importing.elasticsearch(document, mapping=BUILT_MAPPING)
            tm.put(**{**row, "key": key})
        tm.consolidate()
        for message in some:
            expected = {key for key, query in enumerate(queries) if oracle.matches(query, message)}
            words = {"title": message["title"].split()} if "title" in message else {}
            assert tm.match_unique([], {**message, **words}) == expected
