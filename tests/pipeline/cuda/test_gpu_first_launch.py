"""The first launch of a kernel, by many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba.cuda
import numpy as np
import pytest
from support.simulator import SIMULATED

from tagmatch.pipeline.cuda.jit import kernel

cuda: Any = numba.cuda

pytestmark = pytest.mark.gpu

_THREADS = 8
_ROUNDS = 2 if SIMULATED else 20


def _increment() -> Any:
    """A kernel that nobody has launched yet."""

    def increment(values):
        i = cuda.grid(1)
        if i < len(values):
            values[i] += 1

    return kernel(increment)


def test_any_thread_may_launch_a_kernel_first() -> None:
    for _ in range(_ROUNDS):
        increment, barrier = _increment(), threading.Barrier(_THREADS)

        def launch(increment: Any = increment, barrier: threading.Barrier = barrier) -> Any:
            values = cuda.to_device(np.zeros(4, np.int64))
            barrier.wait()
            increment[1, 4](values)
            return values.copy_to_host().tolist()

        with ThreadPoolExecutor(_THREADS) as pool:
            answers = [each.result() for each in [pool.submit(launch) for _ in range(_THREADS)]]
        assert answers == [[1] * 4] * _THREADS
