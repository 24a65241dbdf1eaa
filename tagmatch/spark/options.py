"""What Spark's users ask of tagmatch by name: options of the data source, and settings that begin `spark.tagmatch.`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from pyspark.sql import SparkSession

from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import Layout

Strategy = Literal["auto", "ship", "shuffle"]

#: What makes the value of each option of a text, or raises a ValueError
Parsers: TypeAlias = Mapping[str, Callable[[str], Any]]

_PREFIX = "spark.tagmatch."


def whole(text: str) -> int:
    """An integer from 1 on; ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError("it must be an integer from 1 on")
    return number


def truth(text: str) -> bool:
    """`true` or `false`; ValueError."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def one_of(kind: Any) -> Callable[[str], Any]:
    """One of the values of a type; ValueError."""
    allowed = get_args(kind)

    def chosen(text: str) -> Any:
        if text not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return text

    return chosen


def parsed(given: Mapping[str, str], known: Parsers, what: str) -> dict[str, Any]:
    """The values of options by name, whatever the case of their names.

    Parameters
    ----------
    given : mapping of str to str
    known : Parsers
    what : str
        What these are called, for messages.

    Raises
    ------
    InvalidValueError
        For a name that is not known, with those that are; and for a value that cannot be used.
    """
    names = {name.lower(): name for name in known}
    found = {}
    for given_name, text in given.items():
        name = names.get(given_name.lower())
        if name is None:
            raise InvalidValueError(f"there is no {what} {given_name!r}; there are {', '.join(known)}")
        try:
            found[name] = known[name](text)
        except ValueError as error:
            raise InvalidValueError(f"{what} {name!r} is {text!r}: {error}") from None
    return found


@dataclass(frozen=True, slots=True)
class Settings:
    """What a session says of the arguments that a call of `partition` or `subset_join` leaves out.

    Attributes
    ----------
    layout, max_partition_size, sets_per_task, skip_invalid
        As of `partition`; of the first two, `None` means that nothing is said.
    strategy, ship_limit
        As of `subset_join`.
    """

    layout: Layout | None = None
    max_partition_size: int | None = None
    sets_per_task: int = 1 << 20
    skip_invalid: bool = False
    strategy: Strategy = "auto"
    ship_limit: int = 8 << 30

    @classmethod
    def of(cls, spark: SparkSession) -> Settings:
        """Those of a session, classic or Connect.

        Raises
        ------
        InvalidValueError
            There is another setting that begins `spark.tagmatch.`, or one has a value that cannot be used.
        """
        given = {name: text for name, text in spark.conf.getAll.items() if name.startswith(_PREFIX)}
        found = parsed(given, _SETTINGS, "setting")
        return cls(**{_FIELDS[name]: value for name, value in found.items()})


_SETTINGS: Parsers = {
    f"{_PREFIX}layout": one_of(Layout),
    f"{_PREFIX}maxPartitionSize": whole,
    f"{_PREFIX}setsPerTask": whole,
    f"{_PREFIX}skipInvalid": truth,
    f"{_PREFIX}strategy": one_of(Strategy),
    f"{_PREFIX}shipLimit": int,
}
_FIELDS = dict(zip(_SETTINGS, (field.name for field in fields(Settings)), strict=True))
