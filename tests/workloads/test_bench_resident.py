"""Memory of processes: of one that has ended, but that its parent has not waited for, there is none to tell."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tagmatch.workloads.bench.harness.resident import forget_peak, resident


def test_a_peak_is_forgotten() -> None:
    peak = np.ones(50_000_000).sum()
    assert peak
    before = resident("VmHWM")
    forget_peak()
    assert resident("VmRSS") <= resident("VmHWM") < before - 300_000_000


def until_it_cannot_be_told(pid: int) -> None:
    while True:
        resident("VmHWM", pid)


@pytest.mark.parametrize("_", range(20))  # it is seen while it ends, or after that
def test_a_process_that_has_ended_has_no_memory(_: int) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()  # to its end, so that the child ends without being waited for
        with pytest.raises(ProcessLookupError, match=f"process {child.pid} has ended"):
            until_it_cannot_be_told(child.pid)
    with pytest.raises(FileNotFoundError):
        resident("VmHWM", child.pid)
