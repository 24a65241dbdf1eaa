"""Bits of words, as the processor counts them."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic


def _trailing_zeros(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


def _leading_zeros(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


def _ones(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


#: In a kernel, `trailing_zeros(word)`: the place of the lowest bit that is set in a uint64 other than 0
trailing_zeros: Any = intrinsic(_trailing_zeros)
#: In a kernel, `leading_zeros(word)`: how many bits of a uint64 other than 0 are above the highest that is set
leading_zeros: Any = intrinsic(_leading_zeros)
#: In a kernel, `ones(word)`: how many bits of a uint64 are set
ones: Any = intrinsic(_ones)
