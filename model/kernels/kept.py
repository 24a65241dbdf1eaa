"""Compiled kernels are kept by what their code is, for the processes that come."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import os
import platform
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding as llvm
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

from tagmatch.model import VERSION
from tagmatch.model.kernels.behind import MadeWayError, behind

config: Any = numba.config

_ROOT = 0
_VERSIONS = (VERSION, sys.version_info[:2], numba.__version__, llvmlite.__version__, np.__version__)
_LIBRARIES = {"builtins", "cython", "llvmlite", "math", "numba", "numpy"}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype, numba.types.Type)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_digest(function: Callable[..., Any]) -> str:
    """Digest of all that the machine code of a kernel is made from: its own code, and what it names, in turn.

    An upgrade never runs stale machine code: Numba itself would notice a change in a kernel's own file, but not in a
    kernel that it calls. A change elsewhere leaves it as it is.
    """
    return _digest(repr([_own_code(each)[0] for each in _all_code(function)]))


@cache
def code_size(function: Callable[..., Any]) -> int:
    """Bytes of Python's code of a kernel, and of all that it calls."""
    return sum(len(each.__code__.co_code) for each in _all_code(function))


def _all_code(function: Callable[..., Any]) -> dict[Any, None]:
    """A function, and those that it names, in turn."""
    seen, ahead = {function: None}, [function]
    while ahead:
        for other in _own_code(ahead.pop())[1]:
            if other not in seen:
                seen[other] = None
                ahead.append(other)
    return seen


@cache
def _own_code(function: Any) -> tuple[str, list[Any]]:
    """What a function does and the values that it names, as text, and the compiled functions that it names."""
    used: list[Any] = []
    parts, codes = [repr(function.__defaults__)], [function.__code__]
    cells = [each.cell_contents for each in function.__closure__ or ()]
    values = dict(zip(function.__code__.co_freevars, cells, strict=True))
    for code in codes:  # those within it are added as it goes
        codes += [each for each in code.co_consts if hasattr(each, "co_code")]
        constants = [each for each in code.co_consts if not hasattr(each, "co_code") and each != function.__doc__]
        parts.append(repr((code.co_code, constants, code.co_names, code.co_varnames)))
        values |= {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    parts += [f"{name}={_described(value, used)}" for name, value in sorted(values.items())]
    return repr(parts), used


def _described(value: Any, used: list[Any]) -> str:
    """A value that a kernel names, or the type of an argument; adds compiled functions among such to `used`."""
    value = getattr(value, "dispatcher", value)  # its type has it
    if hasattr(value, "py_func"):
        used.append(value.py_func)
        # Kept code names the module that each came from
        return f"{value.py_func.__module__}.{value.py_func.__qualname__} {value.targetoptions}"
    if isinstance(value, type) and hasattr(value, "_fields"):
        return f"{value.__module__}.{value.__qualname__} {value._fields}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {_digest(value.tobytes().hex())}"
    if isinstance(value, tuple | list):
        return repr((type(value).__qualname__, [_described(each, used) for each in value]))
    if isinstance(getattr(value, "types", None), tuple):  # the type of tuples of such
        return repr((_described(getattr(value, "instance_class", tuple), used), _described(value.types, used)))
    if isinstance(value, _PLAIN):
        return repr(value)
    home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None) or type(value).__module__
    name = f"{home} {getattr(value, '__qualname__', '')}"
    return name if home.partition(".")[0] in _LIBRARIES else f"{name} {_module_digest(home)}"


def digest_of(values: list[Any]) -> str:
    """Digest of values that kernels name."""
    return _digest(repr([_described(each, []) for each in values]))


@cache
def _module_digest(name: str) -> str:
    """Of the source of a module, if it has one: what generates machine code may use anything in it."""
    try:
        return _digest(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return ""


#: The machine code that all but old processors run, by the machine: what LLVM calls it, and the features that it needs
_PORTABLE = {"x86_64": ("x86-64-v3", ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2"))}


@cache
def portable_processor() -> str | None:
    """Return the name of the processor that portable machine code is for; `None` if this machine does not run it."""
    name, features = _PORTABLE.get(platform.machine(), (None, ()))
    own = llvm.get_host_cpu_features()
    return name if all(own.get(each) for each in features) else None


class _ForPortable:
    """As Numba's generator of code, whose settings are a part of keys."""

    def __init__(self, codegen: Any) -> None:
        self._triple = codegen.magic_tuple()[0]

    def magic_tuple(self) -> tuple[str, str | None, str]:
        """Return the machine, the processor, and further features, as `portable_environment` asks for them."""
        return self._triple, portable_processor(), ""


def portable_environment(folder: str) -> dict[str, str]:
    """What a process has in its environment that compiles kernels for other computers, and keeps them in a folder.

    Raises
    ------
    OSError
        if there is no machine code that most processors of this kind run
    """
    name, _ = _PORTABLE.get(platform.machine(), (None, ()))
    if name is None:
        raise OSError(f"there is no portable machine code for {platform.machine()}, only for {', '.join(_PORTABLE)}")
    return {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "", "XDG_CACHE_HOME": folder, "NUMBA_CACHE_DIR": ""}


_ANNOTATION = 5  # in what Numba keeps, behind the code: the types of all variables as text
#: What is said if a call waits for the compiler: at first after a second, and again after many
_COMPILING = "tagmatch: compiling kernels, once on this computer, for up to a minute; `tagmatch warmup` does so ahead"
_STILL = "tagmatch: still compiling kernels"
_SECONDS, _MANY_SECONDS = 1.0, 20.0
_FOLDER = f"kernels-{VERSION}-{_digest(repr(_VERSIONS))}"
#: What wheels for one kind of machine have, of the versions that they were built with
_SHIPPED = Path(__file__).parents[2] / "compiled" / _FOLDER


@cache
def cache_folder() -> str | None:
    """Folder of compiled kernels; `None` if no folder is safe to use.

    It is in `NUMBA_CACHE_DIR`, where that is set, else in `XDG_CACHE_HOME`, else in `~/.cache`. What is there are
    pickles, which run as code: only this user or root may be able to write them.
    """
    try:
        base = config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or _home() / ".cache"
        folder = Path(base, "tagmatch", _FOLDER)
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


class NotKeptError(Exception):
    """A kernel should be loaded, but is not kept."""


class _Loading(threading.local):
    only = False


# Whether this thread wants kernels that are kept, and would not have others compiled
_loading = _Loading()


def load(compiled: Any, types: tuple[Any, ...]) -> bool:
    """Load a kernel for arguments of these types, if it is kept; whether it is."""
    if not isinstance(compiled._cache, _Cache):
        return False
    _loading.only = True
    try:
        compiled.compile(types)
    except NotKeptError:
        return False
    finally:
        _loading.only = False
    return True


class NamedPlace:
    """Tells Numba where the machine code of a kernel is kept: by the kernel's name, not by the installation's place."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._py_file = file  # which Numba names in a warning
        self._module = function.__module__

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> NamedPlace:
        """Return the place of a function's machine code."""
        return cls(function, file)

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        os.makedirs(self.get_cache_path(), mode=0o755, exist_ok=True)

    def get_cache_path(self) -> str:
        """Return the folder."""
        folder = cache_folder()
        assert folder is not None
        return folder

    def get_source_stamp(self) -> str:
        """Return nothing: each entry has the digest of its code."""
        return ""

    def get_disambiguator(self) -> str:
        """Return what tells functions of one name apart."""
        return self._module


class KeptByCode:
    """A cache of Numba's which finds machine code by the code that it is made from.

    Numba's own keys have types of named tuples, so that a class which is no longer there cannot be read, and kernels
    around a kernel, pickled, which no other process has.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parent: Any = super()
        parent.__init__(function)
        self._function, self._py_func = function, _digest  # any function with nothing around it

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        parent: Any = super()
        used: list[Any] = []
        types = _described(sig, used)
        return *map(code_digest, [self._function, *used]), *parent._index_key(types, codegen)

    def load_overload(self, sig: Any, context: Any) -> Any:
        """Return machine code, if it is kept; a file that cannot be read, as after a loss of power, is forgotten."""
        parent: Any = super()
        try:
            return parent.load_overload(sig, context)
        except (MemoryError, NotKeptError, OSError):
            raise
        except Exception:
            with contextlib.suppress(OSError):
                parent.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep machine code, if that can be."""
        parent: Any = super()
        try:
            parent.save_overload(sig, data)
        except OSError as error:
            _warn_of_cache(error)


class _Files(CompileResultCacheImpl):
    _locator_classes = [NamedPlace]  # noqa: RUF012 - as in the base class

    def reduce(self, cres: Any) -> tuple[Any, ...]:
        """Return the machine code, and in place of all that other functions could inline, its names."""
        (name, kind, (machine_code, _)), *rest = super().reduce(cres)
        names = cres.fndesc.llvm_cpython_wrapper_name, cres.fndesc.llvm_cfunc_wrapper_name
        named = llvm.parse_assembly("".join(f'define void @"{each}"() {{ ret void }}\n' for each in names))
        rest[_ANNOTATION] = ""
        return (name, kind, (machine_code, named.as_bitcode())), *rest


class _Cache(KeptByCode, FunctionCache):
    """Also finds kernels that were compiled for other computers, in the same folder or in the package."""

    _impl_class = _Files

    def _load_overload(self, sig: Any, context: Any) -> Any:
        parent: Any = super()
        found = parent._load_overload(sig, context)
        if found is None and portable_processor() is not None:
            key, own = self._index_key(sig, _ForPortable(context.codegen())), self._cache_file
            shipped = IndexDataCacheFile(str(_SHIPPED), self._impl.filename_base, own._source_stamp)
            datas = filter(None, (file.load(key) for file in (own, shipped)))
            found = next((self._impl.rebuild(context, data) for data in datas), None)
        if found is None:
            if _loading.only:
                raise NotKeptError
            if not behind.is_here():
                _wait.begin()
        return found


def kept(compiled: Any, function: Callable[..., Any]) -> Any:
    """Keep the machine code of a kernel, and take it from there; one process at a time compiles it."""
    if cache_folder() is not None:
        compiled._cache = _Cache(function)
        compiled.compile = _once_for_all_processes(compiled.compile, f"{function.__module__}.{function.__qualname__}")
    return compiled


def _once_for_all_processes(compile_one: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Let one process compile a kernel while others that need it wait, and then load the kept code."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])

    @wraps(compile_one)
    def compile_or_load(*arguments: Any) -> Any:
        try:
            with _alone(place):
                return compile_one(*arguments)
        finally:
            _wait.end()

    return compile_or_load


class _Wait(threading.local):
    """A thread waits for a kernel: if this takes a second, the user is told, and again after many."""

    timer: threading.Timer | None = None

    def begin(self) -> None:
        """From now on, unless it waits already."""
        if self.timer is None:
            self.timer = threading.Timer(_SECONDS, _say)
            self.timer.daemon = True
            self.timer.start()

    def end(self) -> None:
        """Until now, if it waits."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


_wait = _Wait()


_said_at: float | None = None


def _say() -> None:
    global _said_at
    now = time.monotonic()
    if sys.stderr is not None and (_said_at is None or now > _said_at + _MANY_SECONDS):
        print(_COMPILING if _said_at is None else _STILL, file=sys.stderr, flush=True)
        _said_at = now


@contextlib.contextmanager
def _alone(place: int) -> Iterator[None]:
    """Keep other processes out of blocks with the same place, where that can be done.

    It cannot be where only another user may write, nor on some file systems of a network: each compiles for itself.
    """
    file = _locks()
    with contextlib.suppress(OSError):
        if file is not None:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except BlockingIOError:
                if _loading.only:
                    raise NotKeptError from None
                if behind.is_here():
                    raise MadeWayError from None
                _wait.begin()
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
