"""Areas as objects, as tags, and as text."""

import math
import struct
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.areas import areas, numbers_of, plane_areas, text_of

import tagmatch
from tagmatch import Box, Circle, FilterError, InvalidTypeError, InvalidValueError, Near
from tagmatch.model.columns import strings_of
from tagmatch.model.filters.areas import check
from tagmatch.model.filters.constraints import Constraint
from tagmatch.model.filters.language import rows_of
from tagmatch.model.kernels.area_shapes import shapes_of
from tagmatch.model.kernels.reserved import areas_among, constraints_among

#: They are in files
_WRITTEN = {
    "within circle(9.19, 45.46, 5000)": "+a\0c402261" + "47ae147ae1" + "4046bae147ae147b" + "40b3880000000000",
    "not within box(170, -10, -170, 10)": "-a\0b4065400000000000c024000000000000c0654000000000004024000000000000",
    "within near(0)": "+a\0n0000000000000000",
}


@pytest.mark.parametrize("text", _WRITTEN)
def test_areas_are_written_as_they_always_are(text: str) -> None:
    tag = "\0" + _WRITTEN[text]
    assert rows_of(text) == [([], [tag])]
    assert str(Constraint.of_tag(tag)) == text


def _tag(area: Any, sign: str, *, plane: bool) -> str:
    """The tag, made from what the documents say of it."""
    letter = type(area).__name__[0]
    digits = "".join(struct.pack(">d", number).hex() for number in numbers_of(area))
    return f"\0{sign}a\0{letter if plane else letter.lower()}{digits}"


@given(areas | plane_areas, st.booleans(), st.booleans(), st.booleans())
def test_tag_and_text_say_all_of_an_area(area: Any, is_negated: bool, plane: bool, is_exact: bool) -> None:
    is_negated = is_negated and not isinstance(area, Near)
    constraint = Constraint.of_area(area, plane=plane)
    constraint = constraint.negation if is_negated else constraint
    assert constraint.tag == _tag(area, "-" if is_negated else "+", plane=plane)
    assert Constraint.of_tag(constraint.tag) == constraint
    assert constraint.area == area
    assert constraint.text == ("not " if is_negated else "") + text_of(area).replace(".0,", ",").replace(".0)", ")")
    text = ("not " if is_negated else "") + text_of(area, is_exact=is_exact)
    for expression in (text, constraint.text):
        [row] = rows_of(expression)
        assert row == ([], [_tag(area, "-" if is_negated else "+", plane=False)])


@pytest.mark.parametrize("around", ["not {}", "not (a = 1 and {})", "a = 1 or not ({} or a = 2)", "not not not {}"])
def test_nothing_is_not_near(around: str) -> None:
    with pytest.raises(FilterError) as caught:
        rows_of(around.format("within near(500)"))
    assert str(caught.value).startswith(
        "where: `not within near(500)` has no meaning, as it does not say whose position is not to be near: use `not`"
    )
    assert rows_of("not (a = 1 or not within near(500))") == rows_of("not a = 1 and within near(500)")


def test_names_of_areas_are_names_of_attributes() -> None:
    names = ("circle", "box", "near")
    [row] = rows_of(" and ".join(f"{name} = 1 and exists({name})" for name in names) + " and within  near \n(5)")
    assert [str(Constraint.of_tag(tag)) for tag in sorted(row.constraints)] == [
        "within near(5)",
        *(f"{test}" for name in sorted(names) for test in (f"exists({name})", f"{name} = 1")),
    ]


@pytest.mark.parametrize(
    "tag",
    [
        "+a\0", "+a\0c", "+a\0n", "+a\0x0000000000000000", "+a\0n000000000000000", "+a\0n00000000000000000",
        "+a\0n000000000000000A", "+a\0nbff0000000000000", "+a\0n7ff0000000000000", "+a\0n7ff8000000000000",
        "+a\0n8000000000000000", "-a\0n0000000000000000", "+ab\0n0000000000000000", "+a\0c0000000000000000",
        "+a\0n0000000000000000\n", "+a\0n０000000000000000",
    ],
)  # fmt: skip
def test_other_tags_are_no_area(tag: str) -> None:
    with pytest.raises(InvalidValueError, match="no constraint has the tag"):
        Constraint.of_tag("\0" + tag)


def test_numbers_become_floats() -> None:
    for number in (3, np.int8(3), np.float32(3), np.uint64(3), np.float64(3)):
        for area in (Circle(number, number, number), Box(number, number, number, number), Near(number)):
            assert {type(each) for each in numbers_of(area)} == {float}
            assert set(numbers_of(area)) == {3.0}
    assert repr(Circle(-0.0, 0, -0.0)) == "Circle(lon=0.0, lat=0.0, metres=0.0)"
    assert Circle(0, 0, 2**70).metres == 2.0**70


_BAD: list[tuple[Any, str]] = [
    (True, "a number, not bool True"), (np.True_, f"a number, not bool {np.True_!r}"), (None, "a number, not NoneType"),
    ("1", "a number, not str '1'"), (1j, "a number, not complex 1j"), (Decimal(1), "a number, not Decimal"),
    (np.datetime64(1, "s"), ""), (math.nan, "finite, not nan"), (np.float32("-inf"), "finite, not -inf"),
    (10**400, "finite, not inf"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), _BAD)
@pytest.mark.parametrize("area", [Circle(1, 2, 3), Box(1, 2, 3, 4), Near(1)], ids=lambda area: type(area).__name__)
def test_what_is_no_finite_number_is_refused(area: Any, value: Any, message: str) -> None:
    for field in area.__slots__:
        fields = {name: getattr(area, name) for name in area.__slots__} | {field: value}
        with pytest.raises(InvalidValueError if "finite" in message else InvalidTypeError) as caught:
            type(area)(**fields)
        assert str(caught.value).startswith(f"{field} must be {message}")


def test_fields_that_do_not_fit_each_other() -> None:
    for make, message in (
        (lambda: Circle(0, 0, -0.5), "metres must be zero or more, not -0.5"),
        (lambda: Near(-1), "metres must be zero or more, not -1.0"),
        (lambda: Box(0, 2, 0, 1), "south must be at most north, which is 1.0, not 2.0"),
    ):
        with pytest.raises(InvalidValueError) as caught:
            make()
        assert str(caught.value) == message


_OUT_OF_RANGE = [
    (Circle(-180.5, 0, 1), "lon must be from -180 to 180, not -180.5"),
    (Circle(0, 91, 1), "lat must be from -90 to 90, not 91.0; lon and lat seem swapped: lon comes first"),
    (Box(181, 0, 182, 1), "west must be from -180 to 180, not 181.0"),
    (Box(0, -91, 1, 0), "south must be from -90 to 90, not -91.0; west and south seem swapped: west comes first"),
    (Box(0, 0, 181, 1), "east must be from -180 to 180, not 181.0"),
    (Box(0, 0, 1, 90.5), "north must be from -90 to 90, not 90.5; east and north seem swapped: east comes first"),
    # The other way around: on the plane
    (Box(170, -10, -170, 10), "west must be at most east, which is -170.0, on the plane, not 170.0"),
]  # fmt: skip


@pytest.mark.parametrize(("area", "message"), _OUT_OF_RANGE, ids=repr)
def test_ranges_of_the_sphere_and_the_plane(area: Any, message: str) -> None:
    of_plane = "plane" in message
    check(area, plane=not of_plane)
    with pytest.raises(InvalidValueError) as caught:
        check(area, plane=of_plane)
    assert str(caught.value) == message


@given(areas, plane_areas)
def test_what_is_in_range(on_sphere: Any, on_plane: Any) -> None:
    check(on_sphere, plane=False)
    check(on_plane, plane=True)


def test_what_is_no_area() -> None:
    for wrong in (None, (1, 2, 3), Circle):
        for use in (Constraint.of_area, partial(check, plane=False)):
            with pytest.raises(InvalidTypeError, match=r"^an area must be a Circle, a Box or a Near, not "):
                use(wrong)


def test_areas_are_public_and_do_not_change() -> None:
    assert {"Circle", "Box", "Near"} <= set(tagmatch.__all__)
    assert len({Circle(1, 2, 3), Circle(1.0, 2, 3), Near(3)}) == 2
    with pytest.raises(AttributeError):
        Near(3).metres = 4  # type: ignore[misc]


#: No areas
_OTHERS = [
    "", "a", "\0", "\0+", "\0+a", "\0+a\0", "\0=a\0n1", "\0+ab\0sa", "\0+ra\0[1:n]1:o", "+a\0n", "\0-t\0a", "\0+a\0c1",
    *(f"\0+a\0{wrong}" for wrong in ("n" + 15 * "0" + "g", "n" + 15 * "0", "b" + 16 * "0", "x" + 16 * "0")),
]  # fmt: skip


@given(st.lists(st.tuples(areas | plane_areas, st.booleans(), st.booleans()) | st.sampled_from(_OTHERS)))
def test_shapes_of_tags(drawn: list[Any]) -> None:
    tags = [each if isinstance(each, str) else _tag(each[0], "-" if each[1] else "+", plane=each[2]) for each in drawn]
    strings = strings_of(tags)
    among = areas_among(strings)
    assert among.tolist() == [tag.startswith(("\0+a\0", "\0-a\0")) and len(tag) > 4 for tag in tags]
    assert not (among & ~constraints_among(strings)).any()
    ranks = np.flatnonzero(among)[::-1].astype(np.uint32)
    kinds, negated, values = shapes_of(strings, ranks)
    assert (kinds.dtype, negated.dtype, values.dtype) == (np.uint8, np.bool_, np.float64)
    assert values.shape == (len(ranks), 4)
    for place, rank in enumerate(ranks):
        if isinstance(drawn[rank], str):
            assert not kinds[place]
            assert not values[place].any()
            continue
        area, is_negated, plane = drawn[rank]
        letter = type(area).__name__[0]
        assert (chr(kinds[place]), negated[place]) == (letter if plane else letter.lower(), is_negated)
        assert values[place].tolist() == [*numbers_of(area), 0.0, 0.0, 0.0][:4]
