"""Arrays that a kernel gets with every call, as one argument: to hand over each by itself takes longer than a query."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba.core import types
from numba.extending import intrinsic
from numba.np import arrayobj

from tagmatch.model.arrays import U64Array


class Prepared:
    """Arrays whose addresses are handed over, and which stay as long as this object."""

    def __init__(self, *arrays: npt.NDArray[Any]) -> None:
        assert all(array.flags.c_contiguous for array in arrays)
        self.arrays = arrays
        # `ctypes.data` and `__array_interface__` say the same, and take eight times as long
        places = [(pa.py_buffer(array).address, array.size) for array in arrays]
        self.addresses: U64Array = np.array(places, np.uint64).ravel()


def _at(addresses: Any, dtype: Any, *, readonly: bool) -> Any:
    """The type of what makes an address and a size an array again, and what generates its code."""
    result = types.Array(dtype.dtype, 1, "C", readonly=readonly)
    signature = result(addresses, types.intp, dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table = context.make_array(signature.args[0])(context, builder, arguments[0])
        at = builder.shl(arguments[1], arguments[1].type(1))
        address, size = (builder.load(builder.gep(table.data, [builder.add(at, at.type(i))])) for i in range(2))
        array = context.make_array(result)(context, builder)
        item_size = context.get_abi_sizeof(context.get_data_type(result.dtype))
        arrayobj.populate_array(
            array,
            data=builder.inttoptr(address, array.data.type),
            shape=[size],
            strides=[context.get_constant(types.intp, item_size)],
            itemsize=item_size,
            meminfo=None,
        )
        return array._getvalue()

    return signature, generate


def _array_at(typing: Any, addresses: Any, place: Any, dtype: Any) -> Any:  # noqa: ARG001
    return _at(addresses, dtype, readonly=True)


def _arrays_at(typing: Any, addresses: Any, place: Any, dtypes: Any) -> Any:
    """A tuple as that of types, which may have tuples in it: named ones become such of arrays."""
    parts = [
        (_arrays_at(typing, addresses, place, each), _count(each))
        if isinstance(each, types.BaseTuple)
        else (_at(addresses, each, readonly=True), 1)
        for each in dtypes
    ]
    arrays = [signature.return_type for (signature, _), _ in parts]
    named = isinstance(dtypes, types.BaseNamedTuple)
    result = types.NamedTuple(arrays, dtypes.instance_class) if named else types.Tuple(arrays)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, at, _ = arguments
        made = []
        for (part, one), count in parts:
            made.append(one(context, builder, part, (table, at, None)))
            at = builder.add(at, at.type(count))
        return context.make_tuple(builder, signature.return_type, made)

    return result(addresses, types.intp, dtypes), generate


def _count(dtypes: Any) -> int:
    """How many arrays there are in a tuple of types."""
    return sum(_count(each) if isinstance(each, types.BaseTuple) else 1 for each in dtypes)


def _own_array_at(typing: Any, addresses: Any, place: Any, dtype: Any) -> Any:  # noqa: ARG001
    return _at(addresses, dtype, readonly=False)


def _count_up(typing: Any, counts: Any, place: Any, more: Any) -> Any:  # noqa: ARG001
    signature = types.void(types.Array(types.int64, 1, "C"), types.intp, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counts = context.make_array(signature.args[0])(context, builder, arguments[0])
        builder.atomic_rmw("add", builder.gep(counts.data, [arguments[1]]), arguments[2], "monotonic")
        return context.get_dummy_value()

    return signature, generate


#: In a kernel, `array_at(addresses, place, dtype)`: array `place` of `Prepared`, read-only; `dtype` is its elements'
array_at: Any = intrinsic(_array_at)

#: In a kernel, `arrays_at(addresses, place, dtypes)`: as many arrays from this place on, as a tuple like that of types
arrays_at: Any = intrinsic(_arrays_at)

#: As `array_at`, of an array that the kernel may write to
own_array_at: Any = intrinsic(_own_array_at)

#: In a kernel, `count_up(counts, place, more)`: add to one of `counts`, int64, in one step, whatever other threads add
count_up: Any = intrinsic(_count_up)
