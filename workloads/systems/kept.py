"""What several systems make of the same stored sets is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa

Made = TypeVar("Made")

# Tables, with what was made of them
_MOST = 8


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Have a function of a table and other arguments keep what it has made of the last few tables.

    Tables are told apart by identity; named arguments, such as `threads`, must not change what is made.
    """
    found: OrderedDict[tuple[Any, ...], tuple[pa.Table, Made]] = OrderedDict()

    @wraps(make)
    def get(table: pa.Table, *arguments: Any, **named: Any) -> Made:
        key = (id(table), *arguments)
        if key not in found:
            found[key] = table, make(table, *arguments, **named)  # with the table, its identity is not another's
        found.move_to_end(key)
        if len(found) > _MOST:
            found.popitem(last=False)
        return found[key][1]

    return get
