"""The web service of a tutorial, by two workers: it starts again, and what was revoked stays revoked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import ROOT, blocks_in

PAGE = ROOT / "docs" / "tutorials" / "entitlements.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def block(words: str) -> str:
    """The one block of the tutorial that has these words."""
    (found,) = (each.code for each in blocks_in(PAGE) if words in each.code)
    return found


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Run what the page says, and give the port when both workers answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "app:app", "--workers", "2", "--port", str(port)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    try:
        while (folder / "log").read_text().count("Application startup complete") < 2:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield port
        assert process.poll() is None
        assert "Traceback" not in (folder / "log").read_text()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def documents(port: int) -> list[str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/documents", headers={"token": "a1"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: list[str] = json.load(answer)
    return found


def test_two_workers_start_again(tmp_path: Path) -> None:
    programs = {
        "make_rules.py": block('"handbook")'),
        "app.py": block("app = FastAPI()"),
        "change_rules.py": f"from tagmatch import TagMatch\n{block('changed.consolidate()')}",
    }
    for name, code in programs.items():
        (tmp_path / name).write_text(code)
    subprocess.run([sys.executable, "make_rules.py"], cwd=tmp_path, check=True)
    with served(tmp_path) as port:
        assert documents(port) == ["budget", "handbook"]
        subprocess.run([sys.executable, "change_rules.py"], cwd=tmp_path, check=True)
        same = 0
        while same < 8:  # by both workers, as soon as each has looked
            same = same + 1 if documents(port) == ["handbook"] else 0
            time.sleep(0.05)
    with served(tmp_path) as port:
        assert {tuple(documents(port)) for _ in range(8)} == {("handbook",)}
