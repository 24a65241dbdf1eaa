"""Writes that fail: those that are made to, and those beyond a size that files of this process may not have."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"), (os, "mkdir"), (os, "open"), (os, "rename"), (os, "replace"), (os, "rmdir"), (os, "unlink"),
    (pa, "OSFile"), (pa.ipc, "new_file"),
)  # fmt: skip


@contextmanager
def disk_full(at: int) -> Iterator[None]:
    """Raise ENOSPC at the `at`-th call, in the block, of those that change what is on the disk."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **options)

        return called

    with ExitStack() as patches:
        for owner, name in _CALLS:
            patches.enter_context(patch.object(owner, name, counted(getattr(owner, name))))
        yield


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let no file grow beyond a size in the block; Python ignores the signal for it, so that writes fail."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
