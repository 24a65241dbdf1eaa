"""Constraints as tags, and as text."""

import random
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.filters import ATTRIBUTES, Not, Tags, Test, after, leaves, neighbours, operands, spellings, text_of, values

from tagmatch import InvalidTypeError, InvalidValueError
from tagmatch.model.filters.constraints import Constraint, Cut, Side, is_constraint
from tagmatch.model.filters.language import rows_of
from tagmatch.model.filters.normal import Row
from tagmatch.model.filters.values import key_of

_ONE = "n" + "bff0000000000000" + "800"
_TWO = "n" + "c000000000000000" + "800"

#: They are in files
_WRITTEN = {
    "a < 1": f"+ra\0[1:n[20:{_ONE}", "a <= 1": f"+ra\0[1:n]20:{_ONE}", "a > 1": f"+ra\0]20:{_ONE}[1:o",
    "a >= 1": f"+ra\0[20:{_ONE}[1:o", "a = 1": f"+ra\0[20:{_ONE}]20:{_ONE}",
    "a != 1": f"+ra\0[0:[20:{_ONE}]20:{_ONE}[1:t", "a = true": "+ra\0[2:b1]2:b1", 'a < "é"': "+ra\0[1:s[3:sé",
    'a >= ""': "+ra\0[1:s[1:t", "a between 1 and 2": f"+ra\0[20:{_ONE}]20:{_TWO}",
    'a in {"b", 1, "a"}': f"+ra\0[20:{_ONE}]20:{_ONE}[2:sa]2:sa[2:sb]2:sb",
    'a not in {"a", "b"}': "+ra\0[0:[2:sa]2:sa[2:sb]2:sb[1:t", 'a prefix "IB"': "+ra\0[3:sIB^3:sIB",
    'a prefix ""': "+ra\0[1:s^1:s", 'a suffix "\\u0000b"': "+sa\0\0b", 'a contains "b"': "+ca\0b",
    "exists(a)": "+ra\0[0:[1:t", 'a < ""': "+ra\0", "`a b` = false": "+ra b\0[2:b0]2:b0", 'not tags {"x"}': "-t\0x",
    'not a suffix "b"': "-sa\0b", "not a = false": "-ra\0[2:b0]2:b0",
}  # fmt: skip


@pytest.mark.parametrize("text", _WRITTEN)
def test_constraints_are_written_as_they_always_are(text: str) -> None:
    tag = "\0" + _WRITTEN[text]
    assert rows_of(text) == [Row([], [tag])]
    assert str(Constraint.of_tag(tag)) == text.replace('{"b", 1, "a"}', '{1, "a", "b"}')


@given(leaves, st.booleans(), spellings)
@example(Test("a", "not in", ("a", "a\0")), False, random.Random(1))
@example(Test("a", "<", ("",)), True, random.Random(1))
def test_tag_and_text_say_all_of_a_constraint(leaf: Test | Tags, is_negated: bool, spelling: random.Random) -> None:
    for row in rows_of(text_of(Not(leaf) if is_negated else leaf, spelling)):
        for tag in row.constraints:
            constraint = Constraint.of_tag(tag)
            assert is_constraint(tag)
            assert constraint.tag == tag
            assert Constraint.of_tag(constraint.tag) == constraint
            assert constraint.negation.negation == constraint != constraint.negation
            assert rows_of(constraint.text) == [Row([], [tag])]
            assert len(constraint.text.splitlines()) == 1
        assert not any(map(is_constraint, row.tags))


@given(leaves)
def test_intervals_are_disjoint_and_in_order(leaf: Test | Tags) -> None:
    for row in rows_of(text_of(leaf, random.Random(1))):
        for tag in row.constraints:
            positions = [cut.position for interval in Constraint.of_tag(tag).intervals for cut in interval]
            assert positions == sorted(positions)


@given(st.sampled_from(["[", "]", "^"]), operands, values)
def test_positions_of_cuts(side: Side, value: object, other: object) -> None:
    """A key is not before the cut if its bytes are not below the cut's position."""
    cut = Cut(side, key_of(value))
    for each in (other, *neighbours(value)):
        key = key_of(each)
        assert (key.encode() >= cut.position) == after(key, cut)


@pytest.mark.parametrize(
    "tag",
    [
        "", "a", "\0", "\0+", "\0=a\0b1", "\0+ra", "\0*ra\0", "\0+xa\0", "+ra\0[2:b0]2:b0", "\0+ra\0[2:b0",
        "\0+ra\0[2:b0]3:b0", "\0+ra\0[2:b0]2:b0 ", "\0+ra\0[02:b0]2:b0", "\0+ra\0(2:b0]2:b0", "\0+ra\0[2:sé]2:sé",
        "\0+ra\0[-1:b0]2:b0", "\0+ra\0x",
    ],
)  # fmt: skip
def test_tags_of_no_constraint(tag: str) -> None:
    with pytest.raises(InvalidValueError, match=r'^no constraint has the tag "'):
        Constraint.of_tag(tag)


def test_values_that_cannot_be_compared() -> None:
    nan, one_of, none_of, between = float("nan"), Constraint.one_of, Constraint.none_of, Constraint.between
    compared = partial(Constraint.compared, "a")
    is_nan, order = (
        "NaN cannot be written in an expression: it equals nothing",
        "no value is between .* the lesser one",
    )
    for make, *given_, message in (
        (compared, "=", nan, is_nan), (compared, "<", nan, is_nan), (one_of, "a", [1, nan], is_nan),
        (none_of, "a", [nan], is_nan), (between, "a", 1, nan, is_nan), (between, "a", nan, 1, is_nan),
        (between, "a", 10, 5, order), (between, "a", 0.1, -0.1, order), (between, "a", "b", "a", order),
        (between, "a", 2**53 + 1, 2.0**53, order),
        (between, "a", 1, "b", 'between needs two numbers or two texts: 1 and "b" have no order'),
        (compared, ">=", True, "true has no order: compare it with = or !="),
    ):  # fmt: skip
        with pytest.raises((InvalidValueError, InvalidTypeError), match=message):
            make(*given_)


@pytest.mark.parametrize("attribute", ["", "a\0"])
def test_names_that_cannot_be_used(attribute: str) -> None:
    for make, *given_ in (
        (Constraint.exists,), (Constraint.compared, "<", 1), (Constraint.none_of, [1]), (Constraint.contains, ""),
        (Constraint.ends_with, ""),
    ):  # fmt: skip
        with pytest.raises(InvalidValueError, match="the name of an attribute must not "):
            make(attribute, *given_)


@given(st.sampled_from(ATTRIBUTES) | st.text(min_size=1, max_size=5).filter(lambda name: "\0" not in name))
def test_any_name_can_be_written(attribute: str) -> None:
    constraint = Constraint.exists(attribute)
    assert rows_of(str(constraint)) == [Row([], [constraint.tag])]
