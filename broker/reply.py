"""The future of one message, which costs little where nobody waits for it when its answer comes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

_PENDING, _FINISHED = "PENDING", "FINISHED"
_LOCK = threading.Lock()


class Reply(Future[Any]):
    """A future whose condition, which takes longest to make, is made when somebody needs it.

    Under a lock that all share, either the condition is made first, and then this is a future as any other; or the
    answer is given first, and then there is nothing to wait for.
    """

    def __init__(self) -> None:
        # Not that of the base class, which makes the condition
        self._made: threading.Condition | None = None
        self._state, self._result, self._exception = _PENDING, None, None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        made = self._made
        if made is None:
            new = threading.Condition()
            with _LOCK:
                if self._made is None:
                    self._made = new
                made = self._made
        return made

    def result(self, timeout: float | None = None) -> Any:
        """The answer, as of any future."""
        if self._state == _FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def done(self) -> bool:
        """Whether there is an answer, an error, or it was cancelled."""
        return self._state == _FINISHED or super().done()


def give(replies: Sequence[Reply], answers: Callable[[int], Any]) -> None:
    """Give each its answer; those that were cancelled get none.

    Parameters
    ----------
    replies : sequence of Reply
    answers : callable
        `answers(i)` is the answer of the one at place `i`.
    """
    awaited = []
    with _LOCK:
        for place, reply in enumerate(replies):
            if reply._made is None:
                reply._result = answers(place)
                reply._state = _FINISHED
            else:
                awaited.append(place)
    for place in awaited:
        with contextlib.suppress(InvalidStateError):
            replies[place].set_result(answers(place))
