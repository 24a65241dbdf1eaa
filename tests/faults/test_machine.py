"""A short form of the random walk; `python -m faults.machine`, in `tests`, is the long one."""

from __future__ import annotations

import json
import subprocess
import sys

from faults.memory import environment

STEPS = 250


def test_a_walk_in_which_anything_may_fail_agrees_with_the_oracle(library, seed):
    command = [sys.executable, "-m", "faults.machine", "--steps", str(STEPS), "--seed", str(seed)]
    done = subprocess.run(command, env=environment(library), capture_output=True, text=True, timeout=580)
    assert done.stdout, done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert not report["problems"], "\n".join(report["problems"])
    assert done.returncode == 0
    failed = {kind for kind in report["counts"] if kind.startswith("failed by")}
    assert {"failed by memory", "failed by interruption"} <= failed, failed
    print(report["counts"])
