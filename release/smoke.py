"""Does it work at all? Run by each Python that tagmatch was installed for, without extras and outside the checkout."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import tagmatch
from tagmatch import Circle, Near, TagMatch

COMMAND = Path(sys.executable).with_name("tagmatch")


def run(*arguments: str, ok: bool = True, **options: str) -> str:
    """What a command prints, on either stream."""
    ran = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert (ran.returncode == 0) == ok, (arguments, ran)
    return str(ran.stdout + ran.stderr)


def error_of(kind: type[Exception], call: Callable[[], object]) -> str:
    """The message of an error of this kind, which a call has to raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def in_python(index: Path) -> None:
    """Sets, constraints, areas and clients; saved, and opened again."""
    with TagMatch(index) as tm:
        tm.add_sets(pa.array([["cat", "fr"], ["cat"], ["dog"]]), [7, 8, 9])
        tm.add_set(["flat"], 1, where='price < 900 and city in {"Lyon", "Nice"}')
        tm.add_set(["storm"], 2, area=Circle(9.19, 45.46, 20_000))
        tm.add_set(["storm"], 3, area=Near(5_000))
        tm.consolidate()
        tm.move([3], [9.2], [45.46])
        tm.save_positions()
    with TagMatch.open(index) as tm:
        assert sorted(tm.match(["cat", "fr", "new"])) == [7, 8]
        assert tm.match_many([["cat"], ["dog"]]).to_pylist() == [[8], [9]]
        assert tm.match(["flat"], {"price": 1, "city": "Nice"}) == [1]
        assert tm.match(["flat"], {"price": 900, "city": "Nice"}) == []
        cheap = {"attr": "price", "op": "<", "value": 900}
        assert tm.add_subscriptions(pa.table({"key": [4], "constraints": [[cheap]]})) == 1
        assert tm.match_unique(["storm"], location=(9.19, 45.46)) == {2, 3}
        assert tm.submit(["cat"]).result() == [8]
        tm.check()


def on_the_command_line(index: Path) -> None:
    """The version, an index of rows, and a question."""
    assert tagmatch.__version__ in run("--version")
    run("build", "-", str(index), input='{"tags": ["cat", "fr"], "key": 7}\n')
    assert '"keys":[7]' in run("match", str(index), "-", input='{"tags": ["cat", "fr", "new"]}\n')
    assert "there is no index" in run("info", f"{index}.not", ok=False)


def what_needs_an_extra(index: Path) -> None:
    """Says so, and how to get it."""
    assert "pip install 'tagmatch[serve]'" in run("serve", str(index), ok=False)
    no_spark = error_of(tagmatch.SparkUnavailableError, lambda: importlib.import_module("tagmatch.spark"))
    assert "pip install 'tagmatch[spark]'" in no_spark
    # Without a driver it is that which is missing first
    no_device = error_of(tagmatch.DeviceError, lambda: TagMatch(device="cuda"))
    assert "tagmatch[cuda]" in no_device or "no NVIDIA driver" in no_device


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        in_python(Path(folder, "a.index"))
        on_the_command_line(Path(folder, "b.index"))
        what_needs_an_extra(Path(folder, "b.index"))
