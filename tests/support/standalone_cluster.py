"""A standalone cluster of Spark on this machine: a master and workers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from support.waiting import wait_until

_SPARK_HOME = Path(pyspark.__file__).parent
_HOST = "127.0.0.1"
# Seconds in which anything is done, also where other programs have the cores
WAIT = 240


@dataclass
class Process:
    """A process of the cluster, in a session of its own, and all that it has started: executors and their Pythons."""

    popen: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End all of them at once, as if their machine had lost power."""
        # The first one, so that it starts no others; and those that were being started meanwhile
        for _ in range(2):
            for pid in (self.popen.pid, *map(int, filter(str.isdigit, os.listdir("/proc")))):
                with suppress(ProcessLookupError, PermissionError):
                    if os.getsid(pid) == self.popen.pid:
                        os.kill(pid, signal.SIGKILL)
            self.popen.wait()


@dataclass
class Cluster:
    """A master, by its address, which drivers have as theirs, and its workers with one core each, by their numbers."""

    url: str
    _status_url: str
    _folder: Path
    _stack: ExitStack
    _workers: dict[int, Process] = field(default_factory=dict)
    _started: int = 0

    def status(self) -> dict[str, Any]:
        """What the master says of itself."""
        with urllib.request.urlopen(self._status_url, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def start_workers(self, count: int) -> None:
        """Start workers until there are as many; returns when the master can use them."""
        while len(self._workers) < count:
            name = f"worker-{self._started}"
            # Each is a machine of its own to Spark, which sends no second copy of a task to where the first one runs
            host = f"127.0.0.{2 + self._started}"
            arguments = ["--cores", "1", "--memory", "1g", "--host", host, "--webui-port", "0"]
            arguments += ["--work-dir", str(self._folder / name), self.url]
            process = self._stack.enter_context(_process(self._folder, name, "worker.Worker", arguments, host))
            self._workers[self._started] = process
            self._started += 1
        wait_until(lambda: sum(each["state"] == "ALIVE" for each in self.status()["workers"]) == count, WAIT)

    def kill_worker(self) -> None:
        """End the worker that was started first, with its executors; returns at once."""
        self._workers.pop(min(self._workers)).kill()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Run a master; it ends with all its workers when the context does, however that ends."""
    with ExitStack() as sockets:
        both = [sockets.enter_context(socket.create_server((_HOST, 0))) for _ in range(2)]
        port, status_port = (each.getsockname()[1] for each in both)
    arguments = ["--host", _HOST, "--port", str(port), "--webui-port", str(status_port)]
    with ExitStack() as stack:
        master = stack.enter_context(_process(folder, "master", "master.Master", arguments))
        found = Cluster(f"spark://{_HOST}:{port}", f"http://{_HOST}:{status_port}/json/", folder, stack)

        def is_up() -> bool:
            assert master.popen.poll() is None, master.log.read_text()
            with suppress(OSError, ValueError):
                return bool(found.status()["status"] == "ALIVE")
            return False

        wait_until(is_up, WAIT)
        yield found


@contextmanager
def _process(folder: Path, name: str, kind: str, arguments: list[str], host: str = _HOST) -> Iterator[Process]:
    command = [str(_SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
    # Of the drivers' JVM, not of this one; executors, which inherit all of this, run the tests' Python and its modules
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY_")}
    environment |= {
        "SPARK_HOME": str(_SPARK_HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = Process(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            ),
            log,
        )
    try:
        yield process
    finally:
        process.kill()
