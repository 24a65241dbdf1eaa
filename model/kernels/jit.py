"""How kernels are compiled: one decorator, one cache folder.

Arrays of which a kernel learns only as it goes how long they have to be.

Some values of one array, copied to another.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from tagmatch.model.version import VERSION

config: Any = numba.config

_MARKS = (b"@kernel", b"@brief_kernel", b"@inlined", b"@lent")
_ROOT, _OWN = 0, "tagmatch"


def _sources(package: Path) -> list[Path]:
    """All modules of a package; what are links in a checkout are followed."""
    folders = os.walk(package, followlinks=True)
    return sorted(Path(folder, file) for folder, _, files in folders for file in files if file.endswith(".py"))


@cache
def _code_digest(package: str) -> str:
    """Of the sources of all kernels of a package, wherever they are installed, and of what compiles them.

    An upgrade never runs stale machine code: Numba itself would notice a change in a kernel's own file, but not in a
    kernel that it calls.
    """
    versions = (VERSION, platform.python_version(), numba.__version__, llvmlite.__version__)
    digest = hashlib.sha256(repr(versions).encode())
    (folder,) = sys.modules[package].__path__
    for source in _sources(Path(folder).absolute()):
        text = source.read_bytes()
        if any(mark in text for mark in _MARKS):
            digest.update(text)
    return digest.hexdigest()[:16]


@cache
def cache_folder() -> str | None:
    """Folder of compiled kernels; `None` if there can be none.

    It is in `NUMBA_CACHE_DIR`, where that is set, else in `XDG_CACHE_HOME`, else in `~/.cache`. What is there are
    pickles, which run as code: only this user or root may be able to write them.
    """
    try:
        base = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
        folder = Path(base, "tagmatch", f"kernels-{VERSION}-{_code_digest(_OWN)}")
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid not in (os.getuid(), _ROOT):
            raise PermissionError(f"{folder} belongs to another user, who is not root")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"other users may write to {folder}")
    except OSError as error:
        _warn_of_cache(error)
        return None
    return str(folder)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user id that no user has, without HOME
        raise FileNotFoundError("there is no home folder") from None


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def _warn_of_cache(error: OSError) -> None:
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    _warn_once(
        f"compiled kernels cannot be kept ({what}), so every process compiles them again, which takes up to a minute; "
        "set XDG_CACHE_HOME to a folder of this user, or to one in which root has run `tagmatch warmup`"
    )


class _Locator:
    """Tells Numba where the machine code of a kernel is kept: by what the code is, not by where it is installed."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file  # which Numba names in a warning
        package = function.__module__.partition(".")[0]
        self._package = package if hasattr(sys.modules.get(package), "__path__") else _OWN
        self._name = f"{function.__module__}-{function.__code__.co_firstlineno}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator:
        return cls(function, file)

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), mode=0o755, exist_ok=True)

    def get_cache_path(self) -> str:
        folder = cache_folder()
        assert folder is not None
        return folder

    def get_source_stamp(self) -> str:
        return _code_digest(self._package)

    def get_disambiguator(self) -> str:
        return self._name


class _Files(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - as in the base class


class _Cache(FunctionCache):
    _impl_class = _Files

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, if that can be."""
        try:
            super().save_overload(sig, data)
        except OSError as error:
            _warn_of_cache(error)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile on first use, without the interpreter lock; cached on disk. Integer division by zero is not checked."""
    return _cached(inlined(function), function)


def brief_kernel(function: Callable[..., Any]) -> Any:
    """A kernel that keeps the interpreter lock, as it takes microseconds: to get it back may take longer."""
    return _cached(numba.njit(error_model="numpy")(function), function)


def inlined(function: Callable[..., Any]) -> Any:
    """A helper, compiled only as part of the kernels that call it, without a call: one that gets arrays costs 50 ns."""
    return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)


def lent(function: Callable[..., Any]) -> Any:
    """As `inlined`, of a helper that neither makes nor returns an array: it counts no references to those that it gets.

    To count them takes 5 ns for each array, longer than most helpers do. What makes an array does not compile.
    """
    options: dict[str, Any] = {"_nrt": False}  # of which Numba's type hints do not know
    return numba.njit(nogil=True, error_model="numpy", forceinline=True, **options)(function)


def _cached(compiled: Any, function: Callable[..., Any]) -> Any:
    if cache_folder() is not None:
        compiled._cache = _Cache(function)
        compiled.compile = _once_for_all_processes(compiled.compile, _Locator(function, "").get_disambiguator())
    return compiled


def _once_for_all_processes(compile_one: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Have processes that need a kernel at the same time wait for the one that compiles it, and load what it keeps."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])

    @wraps(compile_one)
    def compile_or_load(*arguments: Any) -> Any:
        with _alone(place):
            return compile_one(*arguments)

    return compile_or_load


@contextlib.contextmanager
def _alone(place: int) -> Iterator[None]:
    """Keep other processes out of blocks with the same place, where that can be done.

    It cannot be where nobody but another user may write, on some file systems of a network, and where two processes
    would wait for each other, as a kernel is compiled within another: then each compiles for itself.
    """
    file = _locks()
    with contextlib.suppress(OSError):
        if file is not None:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, place)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if file is not None:
                fcntl.lockf(file, fcntl.LOCK_UN, 1, place)


@cache
def _locks() -> int | None:
    """Return the file of whose bytes each is the lock of a kernel; to close it would open all locks of this process."""
    folder = cache_folder()
    try:
        return os.open(Path(folder or "", "LOCK"), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        return None


class _FirstCompilation(event.Listener):
    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell: Callable[[], object] | None = tell

    def on_start(self, event: Any) -> None:  # noqa: ARG002
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def on_end(self, event: Any) -> None:
        """Nothing more."""


def on_first_compilation(tell: Callable[[], object]) -> Callable[[], object]:
    """Call `tell` when a kernel is next compiled by this process, as it is not in the cache; returns what ends that."""
    listener = _FirstCompilation(tell)
    event.register("numba:compile", listener)
    return partial(event.unregister, "numba:compile", listener)


@kernel
def with_room(array, used, more):
    """The array, or a longer copy with room for `more` after the first `used`."""
    if used + more <= len(array):
        return array
    longer = np.empty(max(2 * len(array), used + more), array.dtype)
    longer[:used] = array[:used]
    return longer


_U = np.uint64


@inlined
def copy(values, begin, end, out, at):
    """Copy those from `begin` to `end` to where `at` is; returns the place behind them."""
    # Unsigned indices save the test for a negative one, and so the compiler copies many at once: in a third of the time
    count, source, target = _U(end - begin), _U(begin), _U(at)
    for i in range(count):
        out[target + i] = values[source + i]
    return at + end - begin
