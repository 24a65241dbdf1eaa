"""Removals of what is not there: whether that is an error, and what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from tagmatch.contents import shown_set
from tagmatch.model.arrays import I64Array, Strings, TagLists, U64Array
from tagmatch.model.arrow import from_strings, from_tag_lists
from tagmatch.model.errors import InvalidValueError
from tagmatch.model.options import Missing


def is_error(missing: object) -> bool:
    """Whether it is an error to remove what is not there.

    Raises
    ------
    InvalidValueError
        The option is none of `Missing`.
    """
    if missing not in get_args(Missing):
        raise InvalidValueError(f'missing must be "ignore" or "error", not {missing!r:.80}')
    return missing == "error"


def missing_text(chunks: list[TagLists], keys: U64Array | Strings, gone: I64Array) -> str:
    """What an error says of rows that are not there, of which it names the first."""
    place = first = int(gone[0])
    for chunk in chunks:
        if place < len(chunk):
            break
        place -= len(chunk)
    (tags,) = from_tag_lists(replace(chunk, offsets=chunk.offsets[place : place + 2])).to_pylist()
    key = from_strings(keys)[first].as_py() if isinstance(keys, Strings) else int(keys[first])
    others = f", nor are {len(gone) - 1} more of what is to be removed" if len(gone) > 1 else ""
    return (
        f"key {key!r:.80} is not stored with the set {shown_set(tags):.300}{others}: nothing is removed; give tags and "
        'conditions as they were added, or the option missing as "ignore"'
    )
