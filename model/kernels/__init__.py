"""Numba kernels of the data model: hashing, signatures, tag look-up, rows of ranks."""

import os

from numba.core.compiler_lock import global_compiler_lock

# A fork waits for what other threads load or compile: its child would have the lock for ever, and no such thread
if hasattr(os, "register_at_fork"):
    _opened = global_compiler_lock.release
    os.register_at_fork(before=global_compiler_lock.acquire, after_in_parent=_opened, after_in_child=_opened)
