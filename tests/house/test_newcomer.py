"""A newcomer's way: the start page and each tutorial run as printed, by a program of their own in an empty folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import NEEDS_JAVA, ROOT, blocks_in
from support.newcomers import HOW_TO, ON_SPARK, PAGES, TUTORIALS

RUNNER = ROOT / "tests" / "support" / "documents.py"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_runs(tmp_path: Path, page: str) -> None:
    command = [sys.executable, str(RUNNER), page]
    started = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = started.communicate(timeout=240)
    finally:  # with what a page has started in the background and, as it failed, not ended
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, printed
    compared = int(printed.rpartition(f"{page}: ")[2].split()[0])
    assert compared >= 3, printed


@pytest.mark.parametrize("page", TUTORIALS)
def test_every_block_of_a_tutorial_is_run(page: str) -> None:
    reasons = {block.reason for block in blocks_in(ROOT / page)}
    assert reasons == ({NEEDS_JAVA} if page == ON_SPARK else {None})


@pytest.mark.parametrize("page", [*TUTORIALS, *HOW_TO])
def test_page_begins_with_its_end(page: str) -> None:
    """And says what it needs; and it is short."""
    text = (ROOT / page).read_text()
    before, _, _ = text.partition("\n## ")
    assert "**Afterwards** " in before
    assert "**You need** " in before
    assert len(text.splitlines()) <= 120
