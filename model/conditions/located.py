"""Areas of expressions, which do not know their geometry, on the sphere or on the plane."""

from __future__ import annotations

from tagmatch.model.errors import FilterError, InvalidValueError
from tagmatch.model.filters.areas import check, on_plane
from tagmatch.model.filters.constraints import AREA_TAGS, Constraint

#: Rows of tags, each of which stands for a conjunction
Alternatives = list[list[str]]


def located(rows: Alternatives, *, plane: bool) -> Alternatives:
    r"""The rows of an expression, which does not know its geometry, on the sphere or on the plane.

    Raises
    ------
    FilterError
        An area cannot be one of this geometry: the message names the field.

    Examples
    --------
    >>> from tagmatch.model.filters.language import rows_of
    >>> [row] = rows_of("within circle(9.19, 145.46, 5000)")
    >>> [[tag]] = located([row.constraints], plane=True)
    >>> tag[:6]
    '\x00+a\x00C4'
    >>> located([row.constraints], plane=False)
    Traceback (most recent call last):
    tagmatch.FilterError: where: lat must be from -90 to 90, not 145.46; lon and lat seem swapped: lon comes first
    """
    if not any(tag.startswith(AREA_TAGS) for row in rows for tag in row):
        return rows
    return [[_located(tag, plane) if tag.startswith(AREA_TAGS) else tag for tag in row] for row in rows]


def _located(tag: str, plane: bool) -> str:
    try:
        check(Constraint.of_tag(tag).area, plane=plane)
    except InvalidValueError as error:
        raise FilterError(f"where: {error}") from None
    begin = len(AREA_TAGS[0])
    return tag[:begin] + on_plane(tag[begin:]) if plane else tag
