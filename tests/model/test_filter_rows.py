"""What an expression becomes: a message satisfies one of the rows if and only if it satisfies the expression."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.filters import And, Not, Or, Tags, Test, evaluate, messages, satisfies, spellings, tests, text_of, trees

from tagmatch import TagMatchError
from tagmatch.model.errors import FilterError
from tagmatch.model.filters.constraints import Constraint, is_constraint
from tagmatch.model.filters.language import rows_of
from tagmatch.model.filters.normal import MAX_CONJUNCTIONS, MAX_DEPTH, Row


@given(trees, spellings, st.data())
def test_rows_mean_what_the_expression_means(tree: object, spelling: random.Random, data: st.DataObject) -> None:
    rows = rows_of(text_of(tree, spelling))
    for _ in range(5):
        tags, attributes = data.draw(messages(tree))
        assert any(satisfies(row, tags, attributes) for row in rows) == evaluate(tree, tags, attributes)


@given(tests, spellings, st.data())
def test_a_test_and_its_negation(test: Test, spelling: random.Random, data: st.DataObject) -> None:
    constraints = []
    for tree in (test, Not(test)):
        [row] = rows_of(text_of(tree, spelling))
        assert not row.tags
        constraints += row.constraints
    plain, negated = map(Constraint.of_tag, constraints)
    assert negated == plain.negation
    for _ in range(10):
        tags, attributes = data.draw(messages(test))
        found = [satisfies(Row([], [constraint]), tags, attributes) for constraint in constraints]
        assert found == [evaluate(test, tags, attributes), not evaluate(test, tags, attributes)]


@given(trees, spellings)
def test_rows_are_in_order_and_each_is_there_once(tree: object, spelling: random.Random) -> None:
    rows = rows_of(text_of(tree, spelling))
    assert rows
    assert [Row(sorted(set(row.tags)), sorted(set(row.constraints))) for row in rows] == rows
    assert len({(tuple(row.tags), tuple(row.constraints)) for row in rows}) == len(rows)
    for row in rows:
        assert not any(map(is_constraint, row.tags))
        assert all(map(is_constraint, row.constraints))


def test_equal_rows_are_one_and_come_in_the_order_of_the_expression() -> None:
    assert rows_of("a = 1 or a = 1.0 or (a in {1, 1})") == rows_of("a = 1")
    assert rows_of('tags {"y", "x"} and tags {"x"}') == [Row(["x", "y"], [])]
    rows = rows_of('(tags {"c"} or tags {"a"}) and (tags {"d"} or tags {"b"})')
    assert [row.tags for row in rows] == [["c", "d"], ["b", "c"], ["a", "d"], ["a", "b"]]


def test_tests_of_one_attribute_stay_apart() -> None:
    """Each may hold for another one of several values."""
    [row] = rows_of("a > 5 and a < 3")
    assert len(row.constraints) == 2
    assert satisfies(row, [], {"a": [1, 9]})
    assert not satisfies(row, [], {"a": [4]})


def _choices(count: int) -> And:
    return And(tuple(Or((Tags((f"x{at}",)), Tags((f"y{at}",)))) for at in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize("is_negated", [False, True])
def test_as_many_conjunctions_as_are_allowed(is_negated: bool) -> None:
    def text(count: int) -> str:
        tree = _choices(count)
        return text_of(Not(Or(tuple(map(Not, tree.parts)))) if is_negated else tree, random.Random(1))

    assert len(rows_of(text(10))) == 1024 == MAX_CONJUNCTIONS
    with pytest.raises(FilterError) as caught:
        rows_of(text(11))
    assert str(caught.value) == (
        "where: this becomes 2,048 conjunctions, at most 1,024 are allowed: write alternatives for one attribute as "
        "`in {…}`, or split it at an `or`, with one set for each part"
    )
    assert {ValueError, TagMatchError} <= {*FilterError.__mro__}
    # Too many are only counted: 2 ** 5000 of them
    with pytest.raises(FilterError, match=r"^where: this becomes more than 1,000,000,000 conjunctions, at most 1,024 "):
        rows_of(text(5000))


def test_one_more_alternative_than_are_allowed() -> None:
    alternatives = [f"a = {value}" for value in range(MAX_CONJUNCTIONS + 1)]
    assert len(rows_of(" or ".join(alternatives[1:]))) == MAX_CONJUNCTIONS
    with pytest.raises(FilterError, match="this becomes 1,025 conjunctions"):
        rows_of(" or ".join(alternatives))
    assert len(rows_of(" and ".join(alternatives))) == 1
    assert len(rows_of(f"a in {{{', '.join(map(str, range(5000)))}}}")) == 1


@pytest.mark.slow
def test_as_deep_as_is_allowed() -> None:
    assert rows_of("not " * MAX_DEPTH + "a = 1") == rows_of("a = 1")
    assert rows_of("(" * 5000 + "a = 1" + ")" * 5000) == rows_of("a = 1")
    for count in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(FilterError, match=r"^where: parentheses and `not` are more than 100 within each other"):
            rows_of("not " * count + "a = 1")
