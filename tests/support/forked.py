"""The command `tagmatch` as forks of one process that is ready for it (`preloaded`): saves seconds each time."""

import atexit
import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from tagmatch.cli import main

_HANGS_S = 600


@cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.preloaded"])
    # From where the server imports this
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}):
        multiprocessing.forkserver.ensure_running()
    return context


def _run(arguments: list[str], streams: list[Path], folder: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, (stream, mode) in enumerate(zip(streams, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)):
        os.dup2(os.open(stream, mode), descriptor)
    sys.argv = ["tagmatch", *arguments]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # as every process does but forks


def run_forked(arguments: list[str], stdin: bytes | Path) -> CompletedProcess[str]:
    """How the command ended, and what it wrote; its input comes through a pipe, or is a file."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        if isinstance(stdin, Path):
            streams[0] = stdin
        else:
            os.mkfifo(streams[0])
        for stream in streams[1:]:
            stream.touch()
        process = _forks().Process(target=_run, args=(arguments, streams, os.getcwd(), dict(os.environ)))
        process.start()
        if isinstance(stdin, bytes):
            with contextlib.suppress(BrokenPipeError):
                streams[0].write_bytes(stdin)
        process.join(_HANGS_S)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode is not None, f"{arguments} hangs"
        return CompletedProcess(arguments, process.exitcode, streams[1].read_text(), streams[2].read_text())
