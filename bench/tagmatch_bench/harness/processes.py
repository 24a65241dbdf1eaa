"""Other processes: memory of one, the peak of a build, and `tagmatch serve`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, Self

import pyarrow as pa

from tagmatch import TagMatchError
from tagmatch.model.arrays import give_back
from tagmatch.model.options import Layout
from tagmatch.workloads.twitter import Twitter, TwitterOptions
from tagmatch_bench.systems.tagmatch import build_index


def resident(field: Literal["VmRSS", "VmHWM"], pid: int | Literal["self"] = "self") -> int:
    """Return a process's resident memory in bytes: now, or its peak."""
    status = _status(pid)
    if field in status:
        return int(status[field].split()[0]) << 10
    # A process that is ending has given its memory back before its state says so
    if field in _status("self"):
        raise ProcessLookupError(f"process {pid} has ended")
    raise OSError(f"{_of(pid, 'status')} has no {field}")


def forget_peak(pid: int | Literal["self"] = "self") -> None:
    """Let the kernel forget the peak so far; OSError: it cannot, or there is no such process."""
    _of(pid, "clear_refs").write_text("5")


def _status(pid: int | Literal["self"]) -> dict[str, str]:
    return dict(line.split(":", 1) for line in _of(pid, "status").read_text().splitlines())


def _of(pid: int | Literal["self"], file: str) -> Path:
    return Path("/proc", str(pid), file)


_WARM_UP_USERS = 30


class BuildMemory(NamedTuple):
    """Bytes of memory of a process that builds an index."""

    peak: int  # by which its resident memory rises at most, with its input
    kept: int  # by which it has risen when the input is gone
    indexed: int  # of the index, as `stats()` has it


def memory_of_build(sets: pa.Table, layout: Layout, threads: int) -> BuildMemory:
    """Build `sets` in a new process, and return the memory that takes."""
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as folder:
        path = Path(folder, "sets.arrow")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, sets.schema) as writer:
            writer.write_table(sets)
        command = [sys.executable, "-m", __name__, str(path), layout, str(threads)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return BuildMemory(*json.loads(done.stdout))


def _measure(path: str, layout: Layout, threads: int) -> BuildMemory:
    sets = Twitter(TwitterOptions()).sets(0, _WARM_UP_USERS)
    build_index(sets, layout=layout, threads=threads, device="cpu").close()
    give_back()
    try:
        forget_peak()
    except OSError:  # a peak of compilation may count
        print("the peak before the build cannot be reset", file=sys.stderr)
    before = resident("VmRSS")
    with pa.OSFile(path) as file:
        tm = build_index(pa.ipc.open_file(file).read_all(), layout=layout, threads=threads, device="cpu")
    with tm:
        peak = resident("VmHWM")
        give_back()
        return BuildMemory(peak - before, resident("VmRSS") - before, tm.stats()["index_bytes"])


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))  # type: ignore[arg-type]


_CONFIG = """
[server]
port = 0
[index]
threads = {threads}
[metrics]
port = 0
[log]
level = "warning"
"""


class ServedIndex:
    """A service on this machine, within a `with` block."""

    def __init__(self, index: Path, threads: int) -> None:
        self._folder = TemporaryDirectory()
        config = Path(self._folder.name) / "service.toml"
        config.write_text(_CONFIG.format(threads=threads))
        command = [sys.executable, "-m", "tagmatch", "serve", str(index), "--config", str(config)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        if not words:
            raise TagMatchError("the service has not begun")
        # Such as: tagmatch: listening on grpc://… and http://…, metrics on http://…
        self.url, self.http, self._metrics = words[3], words[5].rstrip(","), words[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()

    def counted(self) -> dict[str, float]:
        """All metrics, by name and labels."""
        with urllib.request.urlopen(self._metrics) as answer:
            lines = [line.decode().rpartition(" ") for line in answer if not line.startswith(b"#")]
        return {name: float(value) for name, _, value in lines}

    @property
    def most_memory(self) -> int:
        """The most bytes that it has had in memory."""
        return resident("VmHWM", self._process.pid)
