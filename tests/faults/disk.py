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

from tagmatch.model.storage.journal import log

_CALLS: tuple[tuple[Any, str], ...] = (
    (os, "fsync"), (os, "ftruncate"), (os, "mkdir"), (os, "open"), (os, "pwritev"), (os, "rename"), (os, "replace"),
    (os, "rmdir"), (os, "unlink"), (pa, "OSFile"), (pa.ipc, "new_file"), (log, "FileIO"),
)  # fmt: skip


@contextmanager
def disk_full(
    first: int, last: int | None = None, code: int = errno.ENOSPC, *, made: list[str] | None = None
) -> Iterator[None]:
    """Raise an error at calls `first` to `last`, in the block, of those that change what is on the disk.

    Without `last` only at the one. The name of each call is added to `made`, also of those that do not fail.
    """
    made = [] if made is None else made
    last = first if last is None else last

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if first <= len(made) <= last:
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return called

    with ExitStack() as patches:
        for owner, name in _CALLS:
            patches.enter_context(patch.object(owner, name, counted(name, getattr(owner, name))))
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
