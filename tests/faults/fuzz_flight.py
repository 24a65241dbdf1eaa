"""Spoiled Arrow IPC messages, sent to `tagmatch serve` over gRPC as no client of Arrow would send them.

The service must not end or be silent, and must have foreseen each error.
"""

import contextlib
import functools
import pickle
import random
import subprocess
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.driver import Case, Length, Program
from faults.fuzz_ipc import Stream, corpus, spoiled
from support.raw_flight import RawClient, data, descriptor
from support.service import Served

from tagmatch import TagMatch

_HANGS_S, _A_SERVICE, _KEPT = 60, 1_500, 30
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


def _sent(streams: Sequence[Stream], count: int, folder: Path, rnd: random.Random) -> Counter[str]:
    """Send `count` streams to a service; keeps the last ones in a file, for the case that one ends the service."""
    answers, last, log = Counter[str](), deque[Stream](maxlen=_KEPT), folder / "log"
    with _service(folder, log) as served, RawClient(served.url) as client:
        for number in range(count):
            stream = spoiled(streams, rnd)
            last.append(stream)
            (folder / "messages.pickle").write_bytes(pickle.dumps([tuple(each) for each in last]))
            answer, _, _ = client.call(_CALLS[stream.command], flight_data(stream), _HANGS_S)
            answers[answer] += 1
            assert answer != "DEADLINE_EXCEEDED", f"stream {number}: no answer in {_HANGS_S} s"
            if answer == "UNAVAILABLE":
                with contextlib.suppress(subprocess.TimeoutExpired):  # it may be about to end
                    served.process.wait(5)
            ended = served.process.poll()
            assert ended is None, f"stream {number}: the service has ended with {ended}: {log.read_text()[-500:]}"
    lines = log.read_text(errors="replace").splitlines()
    unforeseen = [line[-500:] for line in lines if _UNFORESEEN in line]
    assert not unforeseen, f"not foreseen: {unforeseen}"
    return answers


def _cases(rounds: int, _: Path, __: random.Random) -> Iterator[Case]:
    streams = corpus()
    for first in range(0, rounds, _A_SERVICE):
        yield Case("service", str(first), functools.partial(_sent, streams, min(_A_SERVICE, rounds - first)))


PROGRAM = Program(_cases, Length(300, 3_000), wanted=("OK",), hangs_s=900, in_a_process=1, alone=True)
