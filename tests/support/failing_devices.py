"""Devices that fail, or have too little memory."""

from typing import Any

import pytest
from numba.cuda.cudadrv.driver import CudaAPIError

from tagmatch.pipeline.cuda import device as memory

OUT_OF_MEMORY, LAUNCH_FAILED = 2, 719


class InjectedCudaError(CudaAPIError):
    """As CUDA's own; the simulator's class takes no code."""

    def __init__(self, code: int) -> None:
        Exception.__init__(self, f"[{code}] injected")
        self.code, self.msg = code, "injected"


InjectedCudaError.__module__ = CudaAPIError.__module__


class ShortOfMemory:
    """Lets no workspace have an array of more elements than `most`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.refused = 0
        give = memory.Workspace.device

        def device(workspace: memory.Workspace, name: str, dtype: Any, count: int) -> Any:
            if count > most:
                self.refused += 1
                raise InjectedCudaError(OUT_OF_MEMORY)
            return give(workspace, name, dtype, count)

        monkeypatch.setattr(memory.Workspace, "device", device)
