"""What tests of the service share: a clock that they set, and notifications without a message."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tagmatch.broker.outbox import FIXED_BYTES, Notifications, notifications_of
from tagmatch.model.tables import NEVER


class Clock:
    """Microseconds, which only tests move on."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def notifications(
    payloads: Sequence[bytes], expires: Sequence[int | None] | None = None, until: Sequence[int | None] | None = None
) -> Notifications:
    """Notifications with these payloads, of key 7, with the payload as id, too."""
    ends = (
        np.array([NEVER if each is None else each for each in some or [None] * len(payloads)], np.int64)
        for some in (expires, until)
    )
    keys = pa.array([[7]] * len(payloads), pa.list_(pa.uint64()))
    return notifications_of(pa.array(payloads, pa.binary()), pa.array(payloads, pa.large_binary()), keys, *ends)


def size_of(payload: bytes) -> int:
    return FIXED_BYTES + 2 * len(payload) + 8


def is_balanced(counts: dict[str, Any]) -> bool:
    """Whether every notification that was offered is somewhere."""
    return counts["offered"] == sum(counts[name] for name in ("delivered", "dropped", "expired", "waiting"))


def is_accounted_for(counts: dict[str, int]) -> bool:
    """Whether every message that a gateway has received is somewhere."""
    names = ("matched", "unmatched", "refused", "dropped", "failed", "waiting")
    return counts["received"] == sum(counts[name] for name in names)
