"""Several integers of an array at once, in a register of the processor."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, models, register_model

from tagmatch.model.arrays import UIntArray
from tagmatch.model.kernels.interpreted import instead

#: How many
LANES = 8


class _Several(types.Type):
    """The type of as many integers as are merged at once, in a register of the processor."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"{LANES} of {dtype}")


@register_model(_Several)
class _Register(models.PrimitiveModel):
    def __init__(self, manager: Any, several: Any) -> None:
        super().__init__(manager, several, _vector(several.dtype.bitwidth))


def _vector(bits: int) -> Any:
    return ir.VectorType(ir.IntType(bits), LANES)


def _place_of(context: Any, builder: Any, array: Any, arguments: Any) -> Any:
    data = context.make_array(array)(context, builder, arguments[0]).data
    return builder.bitcast(builder.gep(data, [arguments[1]]), _vector(array.dtype.bitwidth).as_pointer())


def _loaded(typing: Any, keys: Any, place: Any) -> Any:  # noqa: ARG001
    """Some consecutive keys."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        at = _place_of(context, builder, signature.args[0], arguments)
        return builder.load(at, align=signature.args[0].dtype.bitwidth // 8)

    return _Several(keys.dtype)(keys, types.intp), generate


def _stored(typing: Any, keys: Any, place: Any, several: Any) -> Any:  # noqa: ARG001
    """Write them, as wide as the array has its keys."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits, value = signature.args[0].dtype.bitwidth, arguments[2]
        if bits > signature.args[2].dtype.bitwidth:
            value = builder.zext(value, _vector(bits))
        at = _place_of(context, builder, signature.args[0], arguments)
        builder.store(value, at, align=bits // 8)
        return context.get_dummy_value()

    return types.void(keys, types.intp, several), generate


def _in_order(typing: Any, first: Any, second: Any) -> Any:  # noqa: ARG001
    """The lower and the higher half of keys whose halves ascend (Batcher's bitonic merge)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.Constant(arguments[0].type, ir.Undefined)

        def shuffled(one: Any, other: Any, lanes: list[int]) -> Any:
            return builder.shuffle_vector(one, other, ir.Constant(_vector(32), lanes))

        def compared(one: Any, other: Any) -> tuple[Any, Any]:
            is_less = builder.icmp_unsigned("<", one, other)
            return builder.select(is_less, one, other), builder.select(is_less, other, one)

        halves, lanes = [], list(range(LANES))
        for half in compared(arguments[0], shuffled(arguments[1], nothing, lanes[::-1])):
            distance = LANES // 2
            while distance:
                low, high = compared(half, shuffled(half, nothing, [lane ^ distance for lane in lanes]))
                half = shuffled(low, high, [lane + (LANES if lane & distance else 0) for lane in lanes])
                distance //= 2
            halves.append(half)
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(first, 2)(first, second), generate


def _alike(typing: Any, before: Any, several: Any) -> Any:  # noqa: ARG001
    """Whether a key and those behind it have one twice, side by side."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        key, keys = arguments
        if key.type != keys.type.element:  # as it came to be, wider
            key = builder.trunc(key, keys.type.element)
        first = builder.insert_element(ir.Constant(keys.type, ir.Undefined), key, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(_vector(32), [0, *range(LANES, 2 * LANES - 1)])
        equal = builder.icmp_unsigned("==", builder.shuffle_vector(first, keys, lanes), keys)
        bits = builder.bitcast(equal, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, bits.type(0))

    return types.boolean(before, several), generate


#: In a kernel, `load(keys, place)`: as many from a place on
load: Any = intrinsic(_loaded)
#: In a kernel, `store(keys, place, several)`: write them from a place on
store: Any = intrinsic(_stored)
#: In a kernel, `in_order(first, second)`: the lower and the higher half of two registers, which ascend
in_order: Any = intrinsic(_in_order)
#: In a kernel, `is_alike(before, several)`: whether one is the same as that before it, the first as `before`
is_alike: Any = intrinsic(_alike)


def _store_several(keys: UIntArray, place: int, several: UIntArray) -> None:
    keys[place : place + LANES] = several


instead(load, lambda keys, place: keys[place : place + LANES].copy())
instead(store, _store_several)
instead(in_order, lambda first, second: np.sort(np.append(first, second)).reshape(2, LANES))
instead(is_alike, lambda before, several: (several == np.append(before, several[:-1])).any())
