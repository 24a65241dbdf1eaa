"""Peak memory of a build, measured in a process of its own.

The process imports everything, compiles by building a small index, and notes its resident memory. Then it reads the
sets into memory and builds. The result is the peak of its resident memory less what was noted: it contains the
Arrow input, all intermediate steps and the index, but not the interpreter, the libraries and the compiled code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tagmatch.workloads import twitter
from tagmatch.workloads.twitter import TwitterOptions
from tagmatch_bench.harness.resident import forget_peak, resident
from tagmatch_bench.systems.tagmatch import build_index

if TYPE_CHECKING:
    from tagmatch.model.options import Layout

_WARM_UP_USERS = 30


def peak_of_build(sets: pa.Table, layout: Layout, threads: int) -> int:
    """Return the bytes by which the build of `sets` raises the peak of a process's resident memory."""
    with tempfile.TemporaryDirectory(prefix="tagmatch-bench-") as folder:
        path = Path(folder, "sets.arrow")
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, sets.schema) as writer:
            writer.write_table(sets)
        command = [sys.executable, "-m", __name__, str(path), layout, str(threads)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    facts: dict[str, int] = json.loads(done.stdout)
    return facts["peak"] - facts["before"]


def _measure(path: str, layout: Layout, threads: int) -> dict[str, int]:
    build_index(twitter.sets(TwitterOptions(), 0, _WARM_UP_USERS), layout=layout, threads=threads, device="cpu").close()
    _reset_peak()
    before = resident("VmRSS")
    with pa.OSFile(path) as file:
        tm = build_index(pa.ipc.open_file(file).read_all(), layout=layout, threads=threads, device="cpu")
    with tm:
        return {"before": before, "peak": resident("VmHWM")}


def _reset_peak() -> None:
    """Have the kernel forget the peak so far; where it cannot, a peak of compilation may count."""
    try:
        forget_peak()
    except OSError:
        print("the peak before the build cannot be reset", file=sys.stderr)


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))  # type: ignore[arg-type]
