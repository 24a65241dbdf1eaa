"""Indexes whose conditions older versions stored: `upgrade` gives these the form of today, and changes find them."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import And, Or, Oracle, Tags, evaluate
from oracle import Test as Test_
from support import filters
from support.agreement import assert_agree, assert_records
from support.command import done
from support.conditions import Expression, Message
from support.expiring import set_clock
from support.index_files import contents_of
from support.old_formats import CONTENTS, DATA, SETS
from support.older_forms import stored_as_before

from tagmatch import Alternative, Circle, FilterError, IndexLockedError, TagMatch, upgrade
from tagmatch.changing import Changing

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1}
WHERE = ["x = 1", "x = 2", 'x = 5 and y != "a"', 'x = 6 and y != "a"', "x > 1 and not x > 9"]


@contextmanager
def changed(index: Path, *older: str, **options: Any) -> Iterator[TagMatch[Any]]:
    """An index whose conditions are stored as before; the changes of the block are consolidated."""
    with stored_as_before(*older), TagMatch(index, **OPTIONS, **options) as tm:
        yield tm
        tm.consolidate()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    with TagMatch(tmp_path / "index", **OPTIONS) as tm:
        for where in WHERE:
            tm.add_set(["cat"], 7, where=where)
        tm.consolidate()
    return tmp_path / "index"


@pytest.mark.parametrize("name", CONTENTS)
def test_an_index_of_each_format_has_records(tmp_path: Path, name: str, layout: str) -> None:
    index, oracle = Path(shutil.copytree(DATA / f"{name}-{layout}.index", tmp_path / "index")), Oracle()
    key_type, fill = CONTENTS[name]
    fill(oracle)
    oracle.consolidate()
    assert upgrade(index).sets == len(oracle)
    before = contents_of(index)
    assert upgrade(index).rewritten == 0
    assert contents_of(index) == before
    with TagMatch.open(index, **OPTIONS, data={"rank": "int64"}) as tm:
        assert_records(tm, oracle)
        key = next(iter(oracle.records()))
        new = 5 if key_type == "integer" else "five"
        for database in (tm, oracle):
            database.put(new, ["put"], data={"rank": 1})
            database.put(key, ["put"])
            database.delete(next(reversed(oracle.records())))
            database.consolidate()
        assert_records(tm, oracle)
        assert_agree(tm, oracle, [["put"], SETS[9]])


def test_what_it_says_and_does(index: Path) -> None:
    became = upgrade(index)
    assert (became.number, became.sets_before, became.sets, became.rewritten) == (2, 5, 3, 1)
    with TagMatch.open(index, **OPTIONS) as tm:
        assert sorted(tm.match(["cat"], {"x": 5, "y": "b"})) == [7, 7]
        tm.add_set(["cat"], 7, where='y != "a" and (x = 6 or x = 5)')
        tm.remove_set(["cat"], 7, where="not (not x = 1 and not x = 2)", missing="error")
        assert tm.consolidate() == (0, 1, 1, 0)
    assert upgrade(index) == type(became)(3, 2, 2, 0)


def test_the_command_says_so(index: Path) -> None:
    with changed(index, "alternatives.folded") as tm:
        tm.put(8, ["cow"], where="x = 1 or x = 2")
        tm.put(9, ["cow"], where="x = 1")
    size = f"{index}: snapshot 3, 5 sets; before:"
    assert done("upgrade", index) == f"{size} 7 sets; the conditions of 2 keys are stored in another form\n"
    assert done("upgrade", index) == f"{size} 5 sets; no condition needs a change\n"


def test_sets_with_areas_and_times_that_are_not_the_same_stay_apart(tmp_path: Path, monkeypatch: Any) -> None:
    index, clock = tmp_path / "index", set_clock(monkeypatch)
    places = [Circle(9, 45, 10), Circle(9, 45, 20)]
    with TagMatch(index, **OPTIONS) as tm:
        for number, where in enumerate(["x = 1", "x = 2", "x = 3"]):
            tm.add_set(["cat"], 7, where=where, area=places[number // 2])
            tm.add_set(["cat"], 8, where=where, expires=clock.after([5, 9, 9][number]))
            tm.add_set([["cat"], ["dog"]][number % 2], 9, where=where)
        tm.add_set(["cat"], 8, where="x in {2, 3}")  # for ever
        tm.consolidate()
    assert upgrade(index).rewritten == 2
    with TagMatch.open(index, **OPTIONS) as tm:
        texts = {key: sorted(str(each.where) for each in tm.get(key).alternatives) for key in (7, 8, 9)}
    assert texts == {
        7: ["x = 3", "x in {1, 2}"],
        8: ["x = 1", "x = 2", "x = 3", "x in {2, 3}"],
        9: ["x = 2", "x in {1, 3}"],
    }


def test_one_who_writes_is_waited_for(index: Path) -> None:
    with TagMatch(index, **OPTIONS) as tm:
        tm.add_set(["dog"], 8)
        with pytest.raises(IndexLockedError, match="has changes staged"):
            upgrade(index)
    became = upgrade(index)  # with the change that was left
    assert (became.sets_before, became.sets) == (6, 4)


def test_what_is_interrupted_is_gone_on_with(index: Path) -> None:
    for method in ("_saved", "consolidate"):
        with patch.object(Changing, method, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            upgrade(index)
        with TagMatch.open(index, **OPTIONS) as tm:
            assert (len(tm), tm.stats()["staged"]) == (5, 6)
    assert upgrade(index).sets == 3
    assert upgrade(index).rewritten == 0


# -- by what they mean -------------------------------------------------------------------------------------------------

TREES = st.lists(filters.trees, min_size=1, max_size=3)


@given(trees=TREES, data=st.data(), spelling=filters.spellings)
def test_messages_get_the_same_keys_and_changes_find_what_was_stored(
    trees: Any, data: Any, spelling: Any, tmp_path_factory: Any
) -> None:
    index = tmp_path_factory.mktemp("upgraded") / "index"
    # Each can hold: of what cannot, no more is known than what rules itself out
    trees = [Or((tree, Tags(("always",)))) for tree in trees]
    expressions = [Expression.of(tree, spelling) for tree in trees]
    messages = [Message(*data.draw(filters.messages(tree))) for tree in trees]
    with changed(index, "alternatives.folded") as tm:
        for key, where in enumerate(expressions):
            tm.add_set(["t"], key, where=where)
    upgrade(index)
    with TagMatch.open(index, **OPTIONS) as tm:
        for tags, attributes in messages:
            expected = {key for key, tree in enumerate(trees) if evaluate(tree, tags, attributes)}
            assert tm.match_unique(["t", *tags], attributes) == expected
        for key, where in enumerate(expressions):
            tm.remove_set(["t"], key, where=where)
            assert tm.consolidate()[3] == 0
            record = tm.get(key)
            # The rest says the same as others do, with their own tags, or nothing
            assert record is None or all(each.tags > {"t"} or rules_itself_out(each) for each in record.alternatives)


def rules_itself_out(alternative: Alternative) -> bool:
    """Whether it cannot hold: with another one, it is not stored."""
    tm = TagMatch(**OPTIONS)
    tm.add_set(["t"], 1, where=f'({alternative.where}) or tags {{"always"}}')
    return tm.consolidate().added == 1


def nested(parts: list[Any]) -> Any:
    """The first, and in parentheses all others."""
    return parts[0] if len(parts) == 1 else And((parts[0], nested(parts[1:])))


def either(at: int, *more: Any) -> Any:
    return Or((Test_(f"a{at}", "=", (1,)), And((Test_(f"b{at}", "=", (2,)), *more)) if more else Tags((f"b{at}",))))


DEEP = {
    "few": nested([either(at) for at in range(6)]),
    "too many": nested([either(at) for at in range(14)]),
    "of several": nested([either(at, Test_(f"c{at}", "<", (at,))) for at in range(13)]),
    "with another": nested([Test_("c", "=", (1,)), *(either(at) for at in range(13)), Test_("d", "=", (1,))]),
}


@pytest.mark.parametrize("name", DEEP)
def test_alternatives_of_many_parts_are_found_by_their_text(tmp_path: Path, name: str) -> None:
    """Alternatives of the first parts were stored apart, each with a test of all others."""
    index, tree, rng = tmp_path / "index", DEEP[name], random.Random(1)
    where = Expression.of(tree, rng)
    with changed(index, "alternatives._joined") as tm:
        tm.add_set(["t"], 7, where=where)
        tm.add_set(["other"], 7, where="a0 = 1")
    done_first, done_again = upgrade(index), upgrade(index)
    assert (done_first.rewritten, done_again.rewritten) == (name != "few", 0)
    with TagMatch.open(index, **OPTIONS) as tm:
        for _ in range(50):
            # Most parts hold
            attributes = {f"{letter}{at}": rng.choice([1, 2, 2]) for at in range(14) for letter in "abc"}
            attributes |= {"c": 1, "d": 1, "a3": 2, "c1": 0, "c2": 0}
            tags = {f"b{at}" for at in range(14) if rng.random() < 0.9}
            assert tm.match_unique(["t", *tags], attributes) == ({7} if evaluate(tree, tags, attributes) else set())
        tm.remove_set(["t"], 7, where=where, missing="error")
        tm.consolidate()
        assert [each.tags for each in tm.get(7).alternatives] == [{"other"}]


def test_alternatives_until_other_times_stay_apart(tmp_path: Path, monkeypatch: Any) -> None:
    index, clock, where = tmp_path / "index", set_clock(monkeypatch), Expression.of(DEEP["too many"], random.Random(0))
    with changed(index, "alternatives._joined") as tm:
        tm.add_set(["t"], 7, where=where, expires=clock.after(5))
    with changed(index) as tm:
        tm.add_set(["t"], 7, where=where)
    sets = upgrade(index).sets
    with TagMatch.open(index, **OPTIONS) as tm:
        assert {each.expires is None for each in tm.get(7).alternatives} == {True, False}
        assert len(tm) == sets > 2


# -- by the record of a key --------------------------------------------------------------------------------------------


FORMS = st.sampled_from(
    [["alternatives.folded"], ["alternatives._joined"], ["alternatives.folded", "alternatives._joined"]]
)


@given(trees=TREES, data=st.data(), spelling=filters.spellings, older=FORMS)
def test_keys_are_as_if_put_anew(trees: Any, data: Any, spelling: Any, older: Any, tmp_path_factory: Any) -> None:
    index, kept = tmp_path_factory.mktemp("upgraded") / "index", {"data": {"rank": "int64"}}
    expressions = [Expression.of(tree, spelling) for tree in trees]
    messages = [Message(*data.draw(filters.messages(tree))) for tree in trees]

    def put(tm: TagMatch[Any]) -> None:
        for key, where in enumerate(expressions):
            tm.put(key, ["t", "t"], where=where, data={"rank": key})

    with changed(index, *older, **kept) as tm:
        put(tm)
    upgrade(index)
    assert upgrade(index).rewritten == 0
    with TagMatch.open(index, **OPTIONS) as tm, TagMatch(**OPTIONS, **kept) as new:
        put(new)
        new.consolidate()
        assert dict(tm.records) == dict(new.records)
        assert set(tm) == set(new)
        for tags, attributes in messages:
            expected = {key for key, tree in enumerate(trees) if evaluate(tree, tags, attributes)}
            assert tm.match_unique(["t", *tags], attributes) == expected


#: The nearest double is written as 1.1
NEAR = [Decimal("1.1") + Decimal(step).scaleb(-19) for step in range(-3, 4)]
PRICES = {"attributes": {"price": "decimal(38, 20)"}}
COMPARE = {
    "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("operator", COMPARE)
def test_decimals_that_were_shortened_get_all_digits_of_the_record(tmp_path: Path, operator: str) -> None:
    index = tmp_path / "index"
    with changed(index, "declared.exact_decimal", **PRICES) as tm:
        for key, price in enumerate(NEAR):
            tm.put(key, ["t"], where=f"price {operator} {price}")
        tm.add_set(["t"], 99, where=f"price {operator} {NEAR[0]}")
    with TagMatch.open(index, **OPTIONS) as tm:
        assert len(tm) == 1  # all as one
        shortened = [tm.match_exists(["t"], {"price": price}) for price in NEAR]
    # Neither 1.1, which is as long as a double, nor the key without a record
    assert upgrade(index).rewritten == len(NEAR) - 1
    assert upgrade(index).rewritten == 0
    with TagMatch.open(index, **OPTIONS) as tm:
        assert [tm.get(key).where for key in range(len(NEAR))] == [f"price {operator} {price}" for price in NEAR]
        for price, is_for_99 in zip(NEAR, shortened, strict=True):
            expected = {key for key, own in enumerate(NEAR) if COMPARE[operator](price, own)}
            assert tm.match_unique(["t"], {"price": price}) == expected | ({99} if is_for_99 else set())


def test_what_else_a_record_has_stays(tmp_path: Path, monkeypatch: Any) -> None:
    index, clock, circle = tmp_path / "index", set_clock(monkeypatch), Circle(9, 45, 1000)
    data = {
        "name": pa.dictionary(pa.int32(), pa.string()),
        "at": pa.timestamp("us", "UTC"),
        "cost": pa.decimal128(9, 2),
    }
    given = {"name": "é", "at": datetime(2026, 1, 2, tzinfo=UTC), "cost": Decimal("1.20")}
    where, rows = "x = 1 or x = 2", [["cat"], ["dog"]]
    with changed(index, "alternatives.folded", key_type="string", data=data) as tm:
        tm.put("all", ["cat"], where=where, area=circle, expires=clock.after(9), data=given)
        tm.put("none", ["cat"], where=where)
        tm.put("more", ["cat"], where=where, data=given)
        tm.put_many(pa.table({"key": ["both"] * 2, "tags": rows, "where": [where] * 2, "name": ["a"] * 2}))
        tm.add_set(["cow"], "more")
        tm.add_set(["cow"], "added", where=where)
    with TagMatch.open(index, **OPTIONS) as tm:
        before = {key: (record.alternatives, record.data) for key, record in tm.records.items()}
        assert len(tm) == 9
    became = upgrade(index)
    assert (became.sets, became.rewritten) == (5, 5)
    with TagMatch.open(index, **OPTIONS) as tm:
        after = {key: (record.alternatives, record.data) for key, record in tm.records.items()}
        assert {key: own for key, own in after.items() if key in ("all", "none")} == {
            key: before[key] for key in ("all", "none")
        }
        assert {key: own[1] for key, own in after.items()} == {key: own[1] for key, own in before.items()}
        assert {key: [each.where for each in after[key][0]] for key in ("more", "both", "added")} == {
            "more": ["x in {1, 2}", None], "both": ["x in {1, 2}"] * 2, "added": ["x in {1, 2}"],
        }  # fmt: skip
        assert sorted(tm.match(["cat"], {"x": 2}, location=(9, 45))) == ["all", "both", "more", "none"]
        assert sorted(tm.match(["cat"], {"x": 2}, location=(9, 46))) == ["both", "more", "none"]


def test_what_was_put_before_a_declaration_stays(tmp_path: Path) -> None:
    index, where = tmp_path / "index", 'day = "2026-01-02" and (x = 1 or x = 2)'
    with changed(index, "alternatives.folded") as tm:
        tm.put(7, ["t"], where=where)
        tm.put(8, ["t"], where="x = 1 or x = 2")
    with changed(index, "alternatives.folded", attributes={"day": "date"}) as tm:
        tm.put(9, ["t"], where=where)
    assert upgrade(index).rewritten == 2
    with TagMatch.open(index, **OPTIONS) as tm:
        assert sorted(tm.match(["t"], {"day": "2026-01-02", "x": 1})) == [8, 9]
        assert [tm.get(key).where for key in (7, 9)] == [where] * 2


def test_what_can_no_longer_be_read_stays(tmp_path: Path) -> None:
    index, where = tmp_path / "index", "x = 1 or x = 2"
    with changed(index, "alternatives.folded") as tm:
        tm.put(7, ["t"], where=where)
    with changed(index, attributes={"y": "int64"}, strict=True) as tm, pytest.raises(FilterError, match="not declared"):
        tm.put(7, ["t"], where=where)
    assert upgrade(index).rewritten == 0
    with TagMatch.open(index, **OPTIONS, strict=False) as tm:
        assert (len(tm), tm.get(7).where, tm.match(["t"], {"x": 1})) == (2, where, [7])
