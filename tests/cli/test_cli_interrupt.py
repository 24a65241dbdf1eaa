"""Ctrl-C and SIGTERM end the command with one line and exit code 130 or 143, at any point of its work."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.agreement import index_of
from support.command import INTERRUPTED, TERMINATED, as_json_lines, begun, first, from_json_lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("interrupt") / "index"
    index_of([["a"]], [1], path).close()
    return path


@contextlib.contextmanager
def answering(
    index: Path, *more: str, lines: str = '{"tags": ["a"]}\n', before: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """`tagmatch match`, when it has answered and waits for the next line."""
    with begun("match", index, "-", *more, before=before) as process:
        process.stdin.write(lines)
        process.stdin.flush()
        assert from_json_lines(process.stdout.readline())[0]["keys"] == [1]
        yield process


def test_on_a_stream_that_waits(index):
    """Rows that were skipped are told also then."""
    with answering(index, "--skip-invalid", lines='{"tags": 1}\n{"tags": ["a"]}\n') as process:
        process.send_signal(signal.SIGINT)
        first, second = process.stderr.read().splitlines(keepends=True)
        assert first.startswith("tagmatch: skipped 1 invalid row; the first: standard input: line 1")
        assert second == INTERRUPTED
    assert process.returncode == 130


def test_on_a_pipe_that_nobody_reads(index, tmp_path):
    queries = tmp_path / "queries.jsonl"
    queries.write_bytes(as_json_lines([{"tags": ["a"]}] * 100_000))
    with begun("match", index, queries) as process:
        assert process.stdout.buffer.read1(1)  # from then on, the pipe fills
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == INTERRUPTED
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGINT, 130, INTERRUPTED), (signal.SIGTERM, 143, TERMINATED)]
)
def test_while_a_service_starts(index, number, code, line):
    process = begun("serve", index, "--port", "0")
    process.send_signal(number)
    assert (process.communicate(timeout=600), process.returncode) == (("", line), code)


def test_as_the_first_process_of_a_container(index):
    """The kernel ignores signals of such a process for which it has no handler."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces of processes here")
    with answering(index, before=alone) as process:
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert process.stderr.read() == TERMINATED
    assert process.returncode == 143


WHATEVER = {
    "another error": "interrupt(); raise AttributeError('what happened to it')",
    "another exit code": "interrupt(); raise SystemExit(1)",
    "no error": "interrupt()",
    "waiting": "interrupt(); threading.Event().wait()",
    # which blocks the signal for itself, so that nothing wakes it up
    "in C": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); interrupt(); ctypes.CDLL(None).sleep(3600)",
    # as the modules do that numpy's C interface imports
    "where C prints errors": "ctypes.pythonapi.PyRun_SimpleString(b'import os; os.kill(os.getpid(), 2)')",
    "where Python ignores errors": "weakref.finalize(threading.Event(), interrupt); threading.Event().wait()",
}


def assert_interrupted(code: str, printed: str = "") -> None:
    process = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True)
    assert (process.stdout, process.stderr, process.returncode) == (printed, INTERRUPTED, 130)


HEAD = """
import ctypes, os, signal, threading, weakref
from tagmatch.cli import interruptible

def interrupt():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10):
            pass
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.parametrize("act", WHATEVER.values(), ids=WHATEVER)
def test_whatever_becomes_of_it(act):
    """Libraries may turn it into their own error, or swallow it."""
    assert_interrupted(f"with interruptible():\n    {act}\n")


def test_what_is_half_done_is_undone():
    """Also where the main thread is in C when the signal comes, so that others see it earlier."""
    code = """
with interruptible():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        ctypes.CDLL(None).usleep(500_000)
    finally:
        os.write(1, b"undone")
"""
    assert_interrupted(code, "undone")


def test_where_llvm_calls_back():
    """An error would not get out of there, but machine code would be missing that is called afterwards."""
    code = """
from numba.core.codegen import CPUCodeLibrary
machine_code, left = CPUCodeLibrary._object_getbuffer_hook, [1]

def once(module):
    found = machine_code(module)
    if found and left:
        left.clear()
        os.kill(os.getpid(), signal.SIGINT)
    return found

CPUCodeLibrary._object_getbuffer_hook = once
with interruptible():
    from tagmatch import TagMatch
    from tagmatch.model.kernels.interpreted import compile_at_once
    compile_at_once()
    try:
        for row in range(100):
            with TagMatch() as tm:
                tm.add_set(["a"], row)
                tm.consolidate()
    finally:
        os.write(1, b"undone")
"""
    assert_interrupted(code, "undone")


def test_an_ignored_ctrl_c_stays_ignored(index):
    """As a shell has it for what runs in the background."""
    with answering(index, before=first("signal.signal(signal.SIGINT, signal.SIG_IGN)")) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate('{"tags": []}\n', timeout=600)[0] == '{"id":1,"keys":[]}\n'
    assert process.returncode == 0


def modules_of(*arguments: object) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-m", "tagmatch", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_nothing_imports_pandas(index, tmp_path):
    """Arrow does, if it can: it takes a second, and Ctrl-C in the middle of it gives errors of all kinds."""
    queries = tmp_path / "queries.jsonl"
    queries.write_bytes(as_json_lines([{"tags": ["a"], "id": "x"}]))
    build = ["build", queries, tmp_path / "new", "--skip-invalid", "--allow-empty"]
    for arguments in (["match", index, queries], build):
        modules = modules_of(*arguments)
        assert "pyarrow" in modules
        assert not [name for name in modules if name.startswith("pandas.")]


def test_help_imports_nothing_heavy():
    modules = modules_of("--help")
    assert "typer" in modules
    assert not modules & {"numba", "numpy", "pyarrow", "rich"}
