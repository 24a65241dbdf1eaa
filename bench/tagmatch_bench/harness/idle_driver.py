"""A CUDA driver that does nothing: what is left of a match on a device then is the work of the host."""

from __future__ import annotations

import pkgutil
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

import tagmatch.pipeline.cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

_MEMORY = 1 << 40


@contextmanager
def idle_driver() -> Iterator[None]:
    """Have matchers on CUDA devices allocate, copy and launch nothing meanwhile; no device is needed.

    All of their Python is run, none of their kernels, nor what Numba does to launch one. The host finds zeros where it
    looks for results: no query has a key.
    """
    found = pkgutil.iter_modules(tagmatch.pipeline.cuda.__path__, "tagmatch.pipeline.cuda.")
    modules = [import_module(each.name) for each in found]
    with ExitStack() as patched:
        patched.enter_context(patch("numba.cuda.gpus", [nullcontext()]))
        for module in modules:
            if replaced := _replaced(module):
                patched.enter_context(patch.multiple(module, **replaced))
        yield


def _replaced(module: ModuleType) -> dict[str, Any]:
    """What a module of `pipeline.cuda` has of Numba, and what it gets instead."""
    members = vars(module)
    replaced = {name: _KERNEL for name, member in members.items() if hasattr(member, "forall")}
    always = {"cuda": _DRIVER, "driver": _COPIES, "_leave_kernels_at_exit": lambda _: None}
    return replaced | {name: member for name, member in always.items() if name in members}


class _Kernel:
    """Is configured and launched, and does nothing."""

    def __getitem__(self, configuration: object) -> _Kernel:
        return self

    def __call__(self, *arguments: object) -> None: ...


class _Stream:
    def synchronize(self) -> None: ...


class _DeviceArray(np.ndarray[Any, Any]):
    """Pages that nobody touches, and so take no memory."""

    def copy_to_host(self) -> npt.NDArray[Any]:
        return np.zeros(self.shape, self.dtype)


class _Copies:
    """What the host code takes from `numba.cuda.cudadrv.driver`."""

    def host_to_device(self, device: object, host: object, size: int, *, stream: object) -> None: ...

    def device_to_host(self, host: object, device: object, size: int, *, stream: object) -> None: ...


class _Driver:
    """What the host code takes from `numba.cuda`."""

    stream = _Stream

    def device_array(self, shape: int, dtype: npt.DTypeLike, *, stream: object = 0) -> _DeviceArray:  # noqa: ARG002
        return np.empty(shape, dtype).view(_DeviceArray)

    def pinned_array(self, shape: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.zeros(shape, dtype)

    def to_device(self, array: npt.NDArray[Any]) -> _DeviceArray:
        return array.view(_DeviceArray)

    def current_context(self) -> Any:
        return SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=_MEMORY, total=_MEMORY))


_KERNEL, _DRIVER, _COPIES = _Kernel(), _Driver(), _Copies()
