"""Records: what an index has of one key. Nothing here imports Arrow or NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypeVar

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.where.areas import Area

K = TypeVar("K", int, str)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the subscriptions of a key: messages that it matches get the key.

    Attributes
    ----------
    tags : frozenset of str
    where : str, optional
        The expression; `None` without one.
    area : Circle, Box, Near, Polygon or Corridor, optional
    expires : datetime, optional
        When it stops matching, in UTC; `None` if it does not.

    Examples
    --------
    >>> from tagmatch import TagMatch
    >>> tm = TagMatch()
    >>> tm.add_sets([["cat"], ["dog", "small"]], [7, 7])
    2
    >>> tm.consolidate()
    ChangeCounts(added=2, already_there=0, removed=0, missing=0)
    >>> sorted(sorted(each.tags) for each in tm.get(7).alternatives)
    [['cat'], ['dog', 'small']]
    """

    tags: frozenset[str]
    where: str | None = None
    area: Area | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Record(Generic[K]):
    """What an index has of one key, as `get` returns it.

    Attributes
    ----------
    key : int or str
    alternatives : tuple of Alternative
        At least one. After `put` it is one, as it was given. Of a key that `add_set` added to several sets, or whose
        sets changed after `put`, there is one for each stored set, with its conditions in normal form.
    data : dict
        The columns of data that have a value, by name.

    Examples
    --------
    >>> from tagmatch import TagMatch
    >>> tm = TagMatch()
    >>> tm.put(7, ["cat"], where="price < 10 or new = true")
    2
    >>> tm.consolidate()
    ChangeCounts(added=2, already_there=0, removed=0, missing=0)
    >>> record = tm.get(7)
    >>> sorted(record.tags), record.where, record.expires
    (['cat'], 'price < 10 or new = true', None)
    """

    key: K
    alternatives: tuple[Alternative, ...]
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tags(self) -> frozenset[str]:
        """Of the only alternative; InvalidValueError if there are several."""
        return self._only.tags

    @property
    def where(self) -> str | None:
        """Of the only alternative; InvalidValueError if there are several."""
        return self._only.where

    @property
    def area(self) -> Area | None:
        """Of the only alternative; InvalidValueError if there are several."""
        return self._only.area

    @property
    def expires(self) -> datetime | None:
        """Of the only alternative; InvalidValueError if there are several."""
        return self._only.expires

    @property
    def _only(self) -> Alternative:
        if len(self.alternatives) > 1:
            raise InvalidValueError(
                f"the record of key {self.key!r} has {len(self.alternatives)} alternatives: look at each of them"
            )
        return self.alternatives[0]


def _writers(kind: type) -> list[Callable[[object, object], None]]:
    return [getattr(kind, each.name).__set__ for each in fields(kind)]


_TAGS, _WHERE, _AREA, _EXPIRES = _writers(Alternative)
_KEY, _ALTERNATIVES, _DATA = _writers(Record)


def plain_record(key: K, tags: frozenset[str], expires: datetime | None, data: Mapping[str, Any]) -> Record[K]:
    """A record of one alternative that has tags only, in a third of the time of the calls of the classes."""
    alternative, record = object.__new__(Alternative), object.__new__(Record)
    _TAGS(alternative, tags)
    _WHERE(alternative, None)
    _AREA(alternative, None)
    _EXPIRES(alternative, expires)
    _KEY(record, key)
    _ALTERNATIVES(record, (alternative,))
    _DATA(record, data)
    return record
