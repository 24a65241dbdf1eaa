"""Products and sums that are rounded one by one, as the CPU's are: CUDA's compiler makes one step of others."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numba

_config: Any = numba.config

times: Callable[..., Any]
plus: Callable[..., Any]
if _config.ENABLE_CUDASIM:  # which fuses nothing, and has no functions for that
    times, plus = operator.mul, operator.add
else:
    from numba.cuda.libdevice import dadd_rn, dmul_rn

    times, plus = dmul_rn, dadd_rn
