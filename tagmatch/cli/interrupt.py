"""Ctrl-C and SIGTERM: one line and exit code 130 or 143, whatever the program is in the middle of.

Both are met from the first act on: of a process that is the first one of a container, the kernel ignores signals for
which it has no handler.

Python raises `KeyboardInterrupt` in the main thread, once that thread is back in Python. Libraries may turn it into an
error of their own, or swallow it, and a kernel may run on for long. So the signal is remembered, and a thread that
waits for nothing else ends the process if it has not ended by then. Where LLVM calls back into Python, an error would
get lost and a kernel lack its machine code, which crashes: there, the error has to wait until LLVM is done.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps, without its imports
import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

#: Time for files that are half written to be removed
_GRACE_S = 1.0
_STEP_S = 0.01
#: What is said about each signal, and the exit code
_ENDS = {signal.SIGINT: (b"tagmatch: interrupted\n", 130), signal.SIGTERM: (b"tagmatch: terminated\n", 143)}
_BEFORE = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

_number = signal.SIGINT
_interrupted = False
_raised = False
_postponed = False
_ending = _thread.allocate_lock()


class interruptible:  # noqa: N801 - used as a function; `contextlib` takes too long to import
    """Within it, Ctrl-C and SIGTERM end the process, except one that it was started with ignored."""

    def __enter__(self) -> None:
        self._active = [number for number, before in _BEFORE.items() if signal.getsignal(number) == before]
        if self._active:
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            try:
                for number in self._active:
                    signal.signal(number, _interrupt)
                signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
                sys.unraisablehook = _unless_interrupted(sys.unraisablehook)
                sys.excepthook = _unless_interrupted(sys.excepthook)  # C prints errors by it and goes on with others
                _thread.start_new_thread(_end_in_time, (reader,))
            except KeyboardInterrupt:  # `__exit__` is not called
                end_if_interrupted()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in self._active:
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_IGN)  # all is done
        end_if_interrupted()


def end_if_interrupted() -> None:
    """End the process if one of the signals has come; called where an error may be a consequence of that."""
    if _interrupted:
        _end()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _raised, _postponed
    if _raised:  # once more
        _end()
    _take_note_of(number)
    if _is_within_llvm(frame):
        _postponed = True
        return
    _raised = True
    raise KeyboardInterrupt


def _take_note_of(number: int) -> None:
    global _number, _interrupted
    if not _interrupted:
        _number, _interrupted = number, True


def _is_within_llvm(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("llvmlite."):
            return True
        frame = frame.f_back
    return False


def _unless_interrupted(hook: Callable[..., object]) -> Callable[..., object]:
    return lambda *error: None if _interrupted else hook(*error)


def _end_in_time(reader: int) -> None:
    """Wait for the signal, which arrives here also where the main thread cannot take notice of it."""
    global _postponed
    while (number := os.read(reader, 1)[0]) not in _ENDS:
        pass
    _take_note_of(number)
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline:
        time.sleep(_STEP_S)
        if _postponed:
            _postponed = False
            _thread.interrupt_main()
    _end()


def _end() -> None:
    """End at once, without waiting for threads; only one says so."""
    line, code = _ENDS[_number]
    try:
        if _ending.acquire(timeout=0.2):
            os.write(2, line)
    finally:
        os._exit(code)
