"""How kernels are compiled: one decorator, one cache folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

from tagmatch.version import VERSION

config: Any = numba.config

_PACKAGES = ("tagmatch", "partitioner", "pipeline", "workloads")


@cache
def cache_folder() -> str | None:
    """Folder of compiled kernels, readable by its owner only because it holds pickles; `None` if none can be made.

    Numba notices a change in a kernel's own file but not in a kernel that it calls, so the folder's name carries a
    digest of all sources: an upgrade never runs stale machine code. `NUMBA_CACHE_DIR`, where set, wins.
    """
    if config.CACHE_DIR:
        return str(config.CACHE_DIR)
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    for package in _PACKAGES:
        for source in sorted((root / package).rglob("*.py")):
            text = source.read_bytes()
            if b"@kernel" in text:
                digest.update(text)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base, "tagmatch", f"kernels-{VERSION}-{digest.hexdigest()[:16]}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or not os.access(folder, os.W_OK):
            return None
    except OSError:
        return None
    return str(folder)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, without the interpreter lock; cached on disk. Integer division by zero is not checked."""
    folder = cache_folder()
    configured = config.CACHE_DIR
    config.CACHE_DIR = folder or ""
    try:
        compiled = numba.njit(nogil=True, error_model="numpy", cache=folder is not None)(function)
    finally:
        config.CACHE_DIR = configured
    return compiled


def inlined(function: Callable[..., Any]) -> Any:
    """A helper, compiled only as part of the kernels that call it."""
    return numba.njit(nogil=True, error_model="numpy")(function)
