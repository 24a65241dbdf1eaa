"""Threads that are in a kernel at the same time and wait there for one another, as OpenMP's threads do."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from tagmatch.model.kernels.jit import inlined
from tagmatch.model.parallel import join, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from tagmatch.model.arrays import I64Array

#: Looks at the others before the processor is offered to other threads; to spin for long is of use only where every
#: thread has a processor of its own
_SPINS = 2000
_ARRIVED, _BROKEN = 0, 1

_sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())


def _in_one_step(operation: str) -> Any:
    def typed(typing: Any, array: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
        signature = array.dtype(array, types.intp, array.dtype)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target = context.make_array(signature.args[0])(context, builder, arguments[0])
            at = builder.gep(target.data, [arguments[1]])
            return builder.atomic_rmw(operation, at, arguments[2], "seq_cst")

        return signature, generate

    return intrinsic(typed)


def _read(typing: Any, array: Any, place: Any) -> Any:  # noqa: ARG001
    signature = array.dtype(array, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = builder.gep(target.data, [arguments[1]])
        return builder.load_atomic(at, "acquire", context.get_abi_sizeof(context.get_data_type(signature.return_type)))

    return signature, generate


_load: Any = intrinsic(_read)
_add = _in_one_step("add")

#: In a kernel, `exchange(array, place, value)`: in one step, whatever other threads do; returns what was there
exchange = _in_one_step("xchg")


class Meeting:
    """Where a number of threads meet in a kernel again and again.

    Attributes
    ----------
    state : int64 array
        What kernels get for `wait`.
    """

    def __init__(self, threads: int) -> None:
        self.state: I64Array = np.zeros(2, np.int64)
        self._threads = threads

    def run(self, work: Callable[[int], None]) -> None:
        """Have all threads do `work(0)`, `work(1)`, ... at the same time; raises the first error of one.

        None of them is the calling thread, which Ctrl-C may take away while others wait for it, nor one of those that
        all callers share, of which there may be too few.

        Raises
        ------
        MemoryError
            The system has no room for so many threads.
        """
        errors: list[BaseException] = []
        all_there = threading.Barrier(self._threads)

        def take_part(number: int) -> None:
            with suppress(threading.BrokenBarrierError):
                all_there.wait()
                try:
                    work(number)
                except BaseException as error:
                    errors.append(error)
                    self.state[_BROKEN] = 1

        threads = [
            threading.Thread(target=take_part, args=[number], name=f"meeting-{number}", daemon=True)
            for number in range(self._threads)
        ]
        try:
            for thread in threads:
                start(thread)
        except BaseException:
            all_there.abort()
            raise
        for thread in threads:
            join(thread)
        if errors:
            raise errors[0]


@inlined
def wait(state, due):
    """Wait until there have been `due` calls of this in all; returns False if a thread has failed and none will come.

    What any thread has written before its call, all see after theirs.
    """
    spins = 0
    _add(state, _ARRIVED, 1)
    while _load(state, _ARRIVED) < due:
        if _load(state, _BROKEN):
            return False
        spins += 1
        if spins > _SPINS:
            _sched_yield()
    return True
