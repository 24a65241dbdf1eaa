"""What several systems make of the same stored sets is made once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pyarrow as pa

Made = TypeVar("Made")

# Results of each function
_MOST = 8


def kept(make: Callable[..., Made]) -> Callable[..., Made]:
    """Have a function keep what it has made of its last few arguments.

    Tables and arrays are told apart by identity; named arguments, such as `threads`, must not change what is made.
    """
    found: OrderedDict[tuple[Any, ...], tuple[tuple[Any, ...], Made]] = OrderedDict()

    @wraps(make)
    def get(*arguments: Any, **named: Any) -> Made:
        key = tuple(id(each) if isinstance(each, pa.Table | pa.Array) else each for each in arguments)
        if key not in found:
            found[key] = arguments, make(*arguments, **named)  # with the arguments, whose identities stay theirs
        found.move_to_end(key)
        if len(found) > _MOST:
            found.popitem(last=False)
        return found[key][1]

    return get
