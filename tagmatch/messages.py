"""Messages: tags and attributes, as the tags by which matchers know both."""

from __future__ import annotations

from collections.abc import Mapping

from tagmatch.model.columns import shown, tag_list
from tagmatch.model.errors import InvalidTypeError
from tagmatch.model.filters.values import attribute_tags


def message(tags: object, attributes: object) -> list[str]:
    r"""The tags of one message, and those that stand for its attributes.

    Raises
    ------
    InvalidTypeError, InvalidValueError
        As `tag_list` and `attribute_tags`; or `attributes` is no mapping.

    Examples
    --------
    >>> message(["fr"], {"new": True})
    ['fr', '\x00=new\x00b1']
    """
    if not isinstance(attributes, Mapping):
        raise InvalidTypeError(f"attributes must be a mapping from names to values, not {shown(attributes)}")
    return [*tag_list(tags), *attribute_tags(attributes)]
