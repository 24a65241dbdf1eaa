"""Ctrl-C at every place where it can come: where the interpreter looks for signals in the library's code.

It looks when a function begins, a loop goes round, or a call of a function that is not Python's has ended; between such
places, code is not interrupted.
"""

from __future__ import annotations

import dis
import functools
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_PACKAGES = ("tagmatch.", "partitioner.", "pipeline.")
_LOOKS = frozenset({"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"})


@functools.cache
def _places(code: CodeType) -> tuple[frozenset[int], frozenset[int]]:
    """Offsets of the instructions after which signals are looked for, and of those that begin the end of a `with`.

    The call at the end of a `with` comes before the next look, but is no longer within the block for Python's tracing.
    """
    found = list(dis.get_instructions(code))
    looks = {each.offset for each in found if each.opname in _LOOKS}
    ends = set()
    for first in range(len(found) - 3):
        at = first + (found[first].opname == "SWAP")
        if all(each.opname == "LOAD_CONST" and each.argval is None for each in found[at : at + 3]):
            ends.add(found[first].offset)
    return frozenset(looks), frozenset(ends)


class Interrupt:
    """KeyboardInterrupt at place number `at` to which a thread comes, counted from 1; 0: only count."""

    def __init__(self, at: int = 0) -> None:
        self._at = at
        self._last: dict[FrameType, int] = {}
        self.count = 0

    def begin(self, frame: FrameType, _: str, __: Any) -> Any:
        """Follow a frame, if it is the library's; for `sys.settrace`."""
        if frame.f_back is not None:
            self._last.pop(frame.f_back, None)  # the call does not look when a function of Python's has ended
        if not frame.f_globals.get("__name__", "").startswith(_PACKAGES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, _: Any) -> Any:
        """Interrupt before an instruction, if the one before it has looked for signals."""
        if event == "return":
            self._last.pop(frame, None)
        if event != "opcode":
            return self.step
        looks, ends = _places(frame.f_code)
        looked = self._last.get(frame) in looks
        self._last[frame] = frame.f_lasti
        if looked and frame.f_lasti not in ends:
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt(f"{frame.f_globals['__name__']}:{frame.f_lineno} {frame.f_code.co_name}")
        return self.step


@contextmanager
def interrupted(interrupt: Interrupt) -> Iterator[None]:
    """Interrupt the calling thread in the block."""
    before = sys.gettrace()
    sys.settrace(interrupt.begin)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def signalled(rng: random.Random, most_s: float) -> Iterator[None]:
    """Have a real signal interrupt the block at a random moment, if it lasts until then."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, most_s * rng.random() ** 3))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
