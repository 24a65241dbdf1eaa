"""Constraints among the tags of a stored set, as users see them."""

from __future__ import annotations

from typing import Self

from tagmatch.model.filters.constraints import Constraint


class Where(str):
    """A condition of a stored set: what `explain` and iteration give beside the set's tags.

    It is the text of the expression, and no tag: it equals no `str` but another `Where`.

    Attributes
    ----------
    path : str, optional
        Of what `explain` gives, how the set was reached: by a `"trie"` of what messages rarely have, or by `"lines"` of
        bits, in which sets are that ask for what most messages have.

    Examples
    --------
    >>> Where("price < 10")
    Where('price < 10')
    >>> Where("price < 10") == "price < 10"
    False
    >>> print(Where("price < 10"))
    price < 10
    """

    __slots__ = ("path",)
    path: str | None

    def __new__(cls, text: str, path: str | None = None) -> Self:
        """A condition, and how its set was reached."""
        where = super().__new__(cls, text)
        where.path = path
        return where

    @classmethod
    def of_tag(cls, tag: str) -> Self:
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
