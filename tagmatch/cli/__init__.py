"""Command lines; and the process of one: standard streams that are closed, modules that it does without, signals.

Ctrl-C and SIGTERM end it with one line and exit code 130 or 143, at any point of its work. Both are met from the
first act on: of a process that is the first one of a container, the kernel ignores signals for which it has no handler.

Python raises `KeyboardInterrupt` in the main thread, once that thread is back in Python. Libraries may turn it into an
own error, or swallow it, and a kernel may run on for long. So the signal is remembered, and a thread that
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


def reserve_standard_streams() -> None:
    """Let no file that is opened later get the number of a standard stream that is closed.

    To read from or write to such a stream then fails as before; but messages go nowhere, and that is no error.
    """
    for descriptor, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as long as the process lives


_NAMES = frozenset({"pandas", "scipy"})


class NotNeeded:
    """Finds no pandas and no SciPy.

    Arrow imports the first when it is first given a Python object, and Numba the second when it first compiles, which
    takes a second each; the command has no use for them. Without them, both
    work all the same. And if memory is short, SciPy's linear algebra waits for it for ever.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """As finders of modules do."""
        if name in _NAMES:
            raise ModuleNotFoundError(f"the command tagmatch does without {name}", name=name)


def main() -> None:
    """Run the command `tagmatch`; from its first act on, Ctrl-C ends it with one line and exit code 130."""
    reserve_standard_streams()
    with interruptible():
        sys.meta_path.insert(0, NotNeeded())
        from tagmatch.cli.app import app
        from tagmatch.cli.shared import run

        run(app)
