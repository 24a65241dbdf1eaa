"""Constraints among the tags of a stored set, as users see them."""

from __future__ import annotations

from tagmatch.model.filters.constraints import Constraint


class Where(str):
    """A condition of a stored set: what `explain` and iteration give beside the set's tags.

    It is the text of the expression, and no tag: it equals no `str` but another `Where`.

    Examples
    --------
    >>> Where("price < 10")
    Where('price < 10')
    >>> Where("price < 10") == "price < 10"
    False
    >>> print(Where("price < 10"))
    price < 10
    """

    __slots__ = ()

    @classmethod
    def of_tag(cls, tag: str) -> Where:
        """The constraint that stands in a stored row as this tag."""
        return cls(Constraint.of_tag(tag).text)

    def __repr__(self) -> str:
        return f"Where({str.__repr__(self)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Where, str.__hash__(self)))
