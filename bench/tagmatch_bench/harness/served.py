"""`tagmatch serve` as a process of its own, for benchmarks: what it counts, and how much memory it has."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from tagmatch.model.errors import TagMatchError
from tagmatch_bench.harness.resident import resident

if TYPE_CHECKING:
    from types import TracebackType

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
    """A service on this machine, within a `with` block.

    Parameters
    ----------
    index : Path
    threads : int
        Threads that match.

    Attributes
    ----------
    url : str
    """

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
        self.url, self._metrics = words[3].rstrip(","), words[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
