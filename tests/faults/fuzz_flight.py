"""Spoiled Arrow IPC messages, sent to `tagmatch serve` over gRPC as no client of Arrow would send them.

`python -m faults.fuzz_flight --mutations 10000 --seed 7`, in `tests`, prints what the service has answered, and what
went wrong: it must not end or be silent, and must have foreseen each error.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from faults.fuzz_ipc import HANGS_S, Stream, corpus, spoiled
from faults.rounds import Report, main_of
from support.raw_flight import RawClient, data, descriptor
from support.service import Served

from tagmatch import TagMatch

# Of those that came last: one of them has ended a service that is gone
_KEPT = 30
_CONFIG = """
[metrics]
enabled = false
[log]
level = "error"
[server]
max_message_bytes = 1048576
max_batch_rows = 1000
"""
_CALLS = {"match": "DoExchange", "notify": "DoExchange", "add": "DoPut", "publish": "DoPut", "move": "DoPut"}
_MORE = {"notify": {"session": "s", "linger": 0}}
# In the log
_UNFORESEEN = "Traceback"


def flight_data(stream: Stream) -> list[bytes]:
    """The messages of Flight; the first one has the descriptor, a command."""
    first, *rest = [data(*message) for message in stream.messages]
    return [descriptor(command=stream.command, **_MORE.get(stream.command, {})) + first, *rest]


@contextlib.contextmanager
def _service(folder: Path, log: Path) -> Iterator[Served]:
    path, config = folder / "index", folder / "service.toml"
    config.write_text(_CONFIG)
    with TagMatch(path) as index:
        index.add_sets([["a"], [], ["b"]], [1, 2, 3], where=["x > 0", None, "within circle(1, 2, 3)"])
        index.consolidate()
    with log.open("ab") as errors:
        served = Served(path, "--config", config, "--port", 0, stderr=errors)
    try:
        yield served
    finally:
        served.kill()


def run(mutations: int, seed: int) -> Report:
    """Send so many streams; a service that is gone or hangs is started again."""
    report, streams, number, last = Report(), corpus(), 0, deque[Stream](maxlen=_KEPT)
    while number < mutations:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "log")
            with _service(Path(folder), log) as served, RawClient(served.url) as client:
                while number < mutations and served.process.poll() is None:
                    stream = spoiled(streams, random.Random(f"{seed}/{number}"))
                    last.append(stream)
                    answer, _, _ = client.call(_CALLS[stream.command], flight_data(stream), HANGS_S)
                    report.kinds[stream.command] += 1
                    report.outcomes[answer] += 1
                    number += 1
                    if answer == "DEADLINE_EXCEEDED":
                        report.problems.append(f"{seed}/{number - 1}: no answer in {HANGS_S} s")
                        break
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to end
                    served.process.wait(1 if answer == "UNAVAILABLE" else 0)
                ended = served.process.poll()
            said = log.read_text(errors="replace")
        if ended is not None:
            with tempfile.NamedTemporaryFile(prefix="fuzz-flight-", suffix=".pickle", delete=False) as file:
                pickle.dump([tuple(stream) for stream in last], file)
            report.problems.append(
                f"{seed}/{number - 1}: the service has ended with {ended}, see {file.name}: {said[-500:]}"
            )
        report.problems += [f"not foreseen: {line[-500:]}" for line in said.splitlines() if _UNFORESEEN in line]
    return report


def main() -> None:
    main_of("Send spoiled Arrow IPC messages to a service.", run, 10_000, "mutations")


if __name__ == "__main__":
    main()
