"""The content-based generator: its statistics, its texts, and that rows depend on the seed and their number alone."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmatch import TagMatchError
from tagmatch.files.json import object_lines
from tagmatch_bench.workloads.content import (
    CONSTRAINT,
    SCENARIOS,
    Content,
    ContentOptions,
    where_texts,
    with_texts,
    with_where,
)

PCM = Content(SCENARIOS["pcm"])
MIXED = Content(
    ContentOptions(
        interfaces=4, min_filters=1, max_filters=900, names=40, strings=0.5, values=30, between=25, zipf=1.0, seed=3
    )
)
SHARES = st.sampled_from([0.0, 1.0, 3.0])


@st.composite
def options(draw: st.DrawFn) -> ContentOptions:
    names = draw(st.integers(1, 12))
    limits = {"filters": (1, 9), "constraints": (1, names), "attributes": (0, names)}
    ranges: dict[str, int] = {}
    for what, (low, high) in limits.items():
        ranges[f"min_{what}"], ranges[f"max_{what}"] = sorted(draw(st.tuples(*[st.integers(low, high)] * 2)))
    return ContentOptions(
        **ranges, seed=draw(st.integers(0, 2**63 - 1)), interfaces=draw(st.integers(1, 9)), names=names,
        zipf=draw(st.sampled_from([0.0, 1.0, 10.0])), strings=draw(st.sampled_from([0.0, 0.3, 1.0])),
        values=draw(st.sampled_from([1, 2, 10, 11, 2**53])), equal=draw(SHARES), less=draw(SHARES),
        between=draw(st.sampled_from([0.0, 2.0])), width=draw(st.sampled_from([0.0, 0.3, 1.0])),
        text_prefix=draw(SHARES), repeats=draw(st.integers(0, 1)), cut=draw(st.integers(0, 1)),
    )  # fmt: skip


def present(messages: pa.Table) -> list[dict[str, Any]]:
    messages.validate(full=True)
    return [{name: x for name, x in row.items() if x is not None} for row in messages.to_pylist()]


@given(chosen=options())
def test_limits(chosen: ContentOptions) -> None:
    content = Content(chosen)
    table, sent = content.subscriptions(0, content.filters), present(content.messages(0, 20))
    table.validate(full=True)
    stored = table.to_pylist()
    per_interface = Counter(row["key"] for row in stored)
    assert list(per_interface) == list(range(chosen.interfaces))
    assert all(chosen.min_filters <= count <= chosen.max_filters for count in per_interface.values())
    for row in stored:
        attributes = [constraint["attr"] for constraint in row["constraints"]]
        assert row["tags"] == []
        assert chosen.min_constraints <= len(attributes) <= chosen.max_constraints
        assert chosen.repeats or len(set(attributes)) == len(attributes)
        assert set(attributes) <= set(content.attributes)
        for constraint in row["constraints"]:
            check_constraint(content, chosen, constraint)
    for message in sent:
        assert chosen.min_attributes <= len(message) <= chosen.max_attributes
        for attribute, x in message.items():
            assert isinstance(x, str if is_text(content, attribute) else int)
            assert 0 <= int(x) < chosen.values
    assert sum(is_text(content, attribute) for attribute in content.attributes) == int(chosen.names * chosen.strings)


def is_text(content: Content, attribute: str) -> bool:
    return content.messages_schema.field(attribute).type == pa.string()


def check_constraint(content: Content, chosen: ContentOptions, constraint: dict[str, Any]) -> None:
    value, upper, text = constraint["value"], constraint["upper"], constraint["text"]
    if is_text(content, constraint["attr"]):
        assert (value, upper) == (None, None)
        cut = constraint["op"] in ("prefix", "contains")
        assert cut or constraint["op"] in ("=", "!=")
        assert text.isdigit()
        assert len(text) == max(2, len(str(chosen.values - 1))) - (cut and chosen.cut)
        return
    assert text is None
    assert 0 <= value < chosen.values
    weight_of = {"=": "equal", "!=": "unequal", "<": "less", ">": "greater", "between": "between"}
    assert getattr(chosen, weight_of[constraint["op"]]) > 0
    if constraint["op"] == "between":
        assert upper < chosen.values
        assert upper - value + 1 == max(1, round(chosen.values * chosen.width))
    else:
        assert upper is None


@given(chosen=options(), data=st.data())
def test_rows_depend_on_the_seed_and_their_number_alone(chosen: ContentOptions, data: st.DataObject) -> None:
    content = Content(chosen)
    for make, count in ((content.subscriptions, content.filters), (content.messages, 50)):
        cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
        parts = [make(first, last, threads=2) for first, last in pairwise(cuts)]
        assert pa.concat_tables(parts).equals(make(0, count))


def test_threads_do_not_change_rows() -> None:
    """Of enough rows for several blocks."""
    assert PCM.subscriptions(0, 200_000, threads=3).equals(PCM.subscriptions(0, 200_000))
    assert PCM.messages(5, 20_000, threads=3).equals(PCM.messages(0, 20_000).slice(5))
    other = Content(replace(SCENARIOS["pcm"], seed=2))
    assert not other.subscriptions(0, 10).equals(PCM.subscriptions(0, 10))


def near(counts: Counter[Any], shares: dict[Any, float]) -> None:
    """Assert that counts are within five standard deviations of what these shares give."""
    total = counts.total()
    assert counts.keys() <= shares.keys()
    for what, share in shares.items():
        assert abs(counts[what] - total * share) <= 5 * np.sqrt(total * share * (1 - share)) + 1e-9, what


def flat_of(content: Content, count: int) -> pa.StructArray:
    """All constraints of the first filters."""
    return content.subscriptions(0, count)["constraints"].combine_chunks().flatten()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["pcm", "ccm"])
def test_default_scenarios(scenario: str) -> None:
    """The numbers of the papers' Tables 1."""
    content = Content(SCENARIOS[scenario])
    assert len(content.attributes) == 100
    assert 10 * 22_500 <= content.filters <= 10 * 27_500
    table, sent = content.subscriptions(0, 40_000), present(content.messages(0, 10_000))
    flat = table["constraints"].combine_chunks().flatten()
    for rows in (table["constraints"].to_pylist(), sent):
        near(Counter(map(len, rows)), dict.fromkeys((3, 4, 5), 1 / 3))
    near(Counter(flat.field("attr").to_pylist()), dict.fromkeys(content.attributes, 0.01))
    near(Counter(name for message in sent for name in message), dict.fromkeys(content.attributes, 0.01))
    texts = Counter(each["op"] for each in flat.to_pylist() if each["text"])
    near(Counter(flat.field("op").to_pylist()) - texts, dict.fromkeys(("=", "!=", "<", ">"), 0.25))
    if scenario == "pcm":
        assert not texts
        near(Counter(flat.field("value").to_pylist()), dict.fromkeys(range(100), 0.01))
        together = Counter((each["op"], each["attr"][-1], each["value"] // 50) for each in flat.to_pylist())
        near(together, dict.fromkeys(product(("=", "!=", "<", ">"), "0123456789", (0, 1)), 1 / 80))
        near(Counter(x for message in sent for x in message.values()), dict.fromkeys(range(100), 0.01))
    else:
        near(texts, dict.fromkeys(("=", "!=", "prefix", "contains"), 0.25))
        near(Counter({"texts": texts.total(), "all": len(flat) - texts.total()}), {"texts": 0.5, "all": 0.5})
        near(Counter(flat.field("text").drop_null().to_pylist()), dict.fromkeys((f"{i:02}" for i in range(100)), 0.01))


def test_zipf() -> None:
    """Of one name a row, as a row has none twice; and if it may, half have the most frequent one, as CCM says."""
    content = Content(
        replace(SCENARIOS["pcm"], zipf=0.5, min_constraints=1, max_constraints=1, min_attributes=1, max_attributes=1)
    )
    weights = np.arange(1, 101) ** -0.5
    shares = dict(zip(content.attributes, weights / weights.sum(), strict=True))
    near(Counter(flat_of(content, 100_000).field("attr").to_pylist()), shares)
    near(Counter(name for message in present(content.messages(0, 20_000)) for name in message), shares)
    flat = flat_of(Content(replace(SCENARIOS["ccm"], zipf=1.7)), 100_000)
    assert Counter(flat.field("attr").to_pylist())["a0"] / len(flat) == pytest.approx(0.5, abs=0.01)


def expression(constraints: list[dict[str, Any]]) -> str:
    parts = []
    for each in constraints:
        operand = f'"{each["text"]}"' if each["text"] is not None else str(each["value"])
        upper = f" and {each['upper']}" if each["op"] == "between" else ""
        parts.append(f"{each['attr']} {each['op']} {operand}{upper}")
    return " and ".join(parts)


def test_expressions() -> None:
    (batch,) = MIXED.subscriptions(0, MIXED.filters).combine_chunks().to_batches()
    due = list(map(expression, batch["constraints"].to_pylist()))
    assert {word for text in due for word in text.split()} >= {"=", "!=", "<", ">", "between", "prefix", "contains"}
    assert where_texts(batch["constraints"].slice(11, 5)).to_pylist() == due[11:16]
    written = with_where(batch)
    assert written["where"].to_pylist() == due
    assert written.drop_columns("where").equals(batch)
    some = batch.slice(3, 497)
    found = [json.loads(line) for line in bytes(object_lines(with_texts(some))).splitlines()]
    rows = zip(some["key"].to_pylist(), due[3:500], strict=True)
    assert found == [{"key": key, "tags": [], "where": text} for key, text in rows]
    messages = MIXED.messages(0, 500)
    (batch,) = messages.combine_chunks().to_batches()
    assert [json.loads(line) for line in bytes(object_lines(batch)).splitlines()] == present(messages)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"names": 0}, "names must be from 1 to 10000, not 0"),
    ({"names": 4}, "max_constraints must be at most names, 4, not 5"),
    ({"names": 5, "max_attributes": 6}, "max_attributes must be at most names, 5, not 6"),
    ({"min_filters": 9, "max_filters": 8}, "min_filters must be at most max_filters, 8, not 9"),
    ({"values": 2.0}, "values must be an integer, not 2.0"),
    ({"width": 1.5}, "width must be from 0 to 1, not 1.5"),
    (dict.fromkeys(("equal", "unequal", "less", "greater"), 0), "equal, unequal, less, greater and between"),
    (
        {"strings": 0.1, **{f"text_{op}": 0 for op in ("equal", "unequal", "prefix", "contains")}},
        "text_equal, text_unequal, text_prefix and text_contains",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_wrong_options(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(TagMatchError, match=message):
        ContentOptions(**wrong)


def test_ranges_and_schema() -> None:
    for make, most in ((PCM.subscriptions, PCM.filters), (PCM.messages, 2**40)):
        for first, last in ((-1, 5), (6, 5), (0, most + 1)):
            with pytest.raises(TagMatchError, match=f"ascending and from 0 to {most}"):
                make(first, last)
        assert [len(make(most - few, most)) for few in (0, 3)] == [0, 3]
    assert PCM.subscriptions(0, 5).schema == pa.schema(
        {"key": pa.uint64(), "tags": pa.list_(pa.string()), "constraints": pa.list_(CONSTRAINT)}
    )
