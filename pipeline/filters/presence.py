"""How often messages have each attribute: counted as they come, for whoever next indexes sets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tagmatch.model.arrays import F64Array, I64Array, Strings, U32Array, offsets_of
from tagmatch.model.kernels.jit import kernel
from tagmatch.pipeline.filters.attributes import Names
from tagmatch.pipeline.filters.messages import Messages

# Of fewer messages nothing is learned
_ENOUGH = 1_000


@kernel
def count_messages(messages, attributes, since, counts):
    """Count so many messages, which have these attributes in all, in the arrays of a `Seen`."""
    since[0] += messages
    for attribute in attributes:
        if attribute < len(counts):
            counts[attribute] += 1


class Seen:
    """Messages, and those of them that have each attribute.

    Threads that count at the same time may lose some. An attribute with several values counts as often.

    Parameters
    ----------
    names : Names
        Of the attributes.
    before : sequence of Seen
        What was counted for other sets, to go on from.
    """

    def __init__(self, names: Names, before: Sequence[Seen] = ()) -> None:
        self._names = names
        self._before, self._counts = _sums(names, before)
        self._since = np.zeros(1, np.int64)

    @property
    def arrays(self) -> tuple[I64Array, I64Array]:
        """What `count_messages` writes to."""
        return self._since, self._counts

    def count(self, messages: Messages) -> None:
        """Count some more."""
        count_messages(len(messages), messages.attributes, *self.arrays)

    def count_values(self, messages: int, attributes: U32Array, columns: I64Array, sizes: I64Array) -> None:
        """Count so many more, which have these attributes, and in columns of other attributes so many values."""
        count_messages(messages, attributes, *self.arrays)
        np.add.at(self._counts, columns, sizes)

    @property
    def _messages(self) -> I64Array:
        """Messages that were seen since each attribute is known."""
        return self._before + self._since

    @property
    def presence(self) -> F64Array:
        """Which part of messages has each attribute; NaN where too few were seen."""
        messages = self._messages
        enough = messages >= _ENOUGH
        presence = np.full(len(enough), np.nan)
        presence[enough] = np.minimum(self._counts[enough] / messages[enough], 1.0)
        return presence


def _sums(names: Names, before: Sequence[Seen]) -> tuple[I64Array, I64Array]:
    """Messages, and those with each attribute, over all that know its name."""
    messages, counts = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
    if before:
        strings = [names.strings, *(seen._names.strings for seen in before)]
        offsets = offsets_of(np.concatenate([np.diff(each.offsets) for each in strings]))
        # These names come first, and so have the first numbers
        numbers = Names.of(Strings(offsets, np.concatenate([each.data for each in strings])))[1][len(names) :]
        known = numbers < len(names)
        np.add.at(messages, numbers[known], np.concatenate([seen._messages for seen in before])[known])
        np.add.at(counts, numbers[known], np.concatenate([seen._counts for seen in before])[known])
    return messages, counts
