"""Words that threads read while others write them: loads, stores and fences in an order that all threads see."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    return builder.gep(data, [arguments[1]])


def _load(ordering: str) -> Any:
    def typed(typing: Any, words: Any, place: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at = _place(context, builder, signature, arguments)
            return builder.load_atomic(at, ordering, words.dtype.bitwidth // 8)

        return words.dtype(words, types.intp), generate

    return intrinsic(typed)


def _store(ordering: str) -> Any:
    def typed(typing: Any, words: Any, place: Any, value: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            at = _place(context, builder, signature, arguments)
            builder.store_atomic(arguments[2], at, ordering, words.dtype.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(words, types.intp, words.dtype), generate

    return intrinsic(typed)


def _fence(ordering: str) -> Any:
    def typed(typing: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            builder.fence(ordering)
            return context.get_dummy_value()

        return types.void(), generate

    return intrinsic(typed)


def _add(typing: Any, words: Any, place: Any, more: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", _place(context, builder, signature, arguments), arguments[2], "seq_cst")

    return words.dtype(words, types.intp, words.dtype), generate


#: In a kernel, `load_relaxed(words, place)`: a word as it is at some moment, of integers
load_relaxed: Any = _load("monotonic")
#: As `load_relaxed`; what is read after it is not read before it
load_acquire: Any = _load("acquire")
#: In a kernel, `store_relaxed(words, place, value)`: write a word as a whole
store_relaxed: Any = _store("monotonic")
#: As `store_relaxed`; what is written before it is not written after it
store_release: Any = _store("release")
#: In a kernel, `fence_acquire()`: what was read before it is not read after what is read after it
fence_acquire: Any = _fence("acquire")
#: In a kernel, `fence_release()`: what is written after it is not written before what was written before it
fence_release: Any = _fence("release")
#: In a kernel, `add(words, place, more)`: add to a word in one step; returns what it was
add: Any = intrinsic(_add)
#: In a kernel, `give_way()`: let other threads run, if some wait for this core
give_way: Any = types.ExternalFunction("sched_yield", types.int32())
