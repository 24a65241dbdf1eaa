"""A newcomer's way: tagmatch is installed into a new environment as the start page says; each page runs as printed.

Nothing is replaced: `pip` gets packages from where it is configured to, PySpark with them, and builds tagmatch from a
copy of the source code.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.documents import NEEDS_JAVA, ROOT, blocks_in
from support.newcomers import HOW_TO, ON_SPARK, PAGES, TUTORIALS, Newcomer, how_to_install, needed_for

RUNNER = ROOT / "tests" / "support" / "documents.py"

# To have packages may take as long as the network does
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """Who has followed the start page so far that tagmatch is installed, without extras."""
    someone = Newcomer(tmp_path_factory.mktemp("newcomer"))
    someone.follow(how_to_install())
    return someone


@pytest.mark.slow
def test_what_is_installed_is_what_runs(newcomer: Newcomer, tmp_path: Path) -> None:
    """And none of what this environment has: else a page that does not say what it needs would run all the same."""
    found = newcomer.run(["python", "-c", "import tagmatch; print(tagmatch.__file__)"], tmp_path)
    assert Path(found.strip()).is_relative_to(newcomer.source / ".venv")
    others = newcomer.run(["pip", "list", "--format", "freeze"], tmp_path)
    assert "hypothesis" not in others


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_runs(newcomer: Newcomer, tmp_path: Path, page: str) -> None:
    for command in needed_for(page):
        newcomer.install(command)
    reason = [NEEDS_JAVA] if page == ON_SPARK else []
    for _ in range(2 if page in TUTORIALS else 1):  # and once more, in the same folder, as after a restart
        printed = newcomer.run(["python", str(RUNNER), page, *reason], tmp_path)
        compared = int(printed.rpartition(f"{page}: ")[2].split()[0])
        assert compared >= 3, printed


def test_every_page_says_how_to_install_what_it_needs() -> None:
    installed = [line for block in how_to_install() for line in block.code.splitlines()]
    assert any(re.match(r"pip install \.$", line) for line in installed), installed
    assert {page: needed_for(page) for page in PAGES if needed_for(page)} == {
        "docs/tutorials/entitlements.md": ["pip install fastapi httpx2 uvicorn"],
        "docs/tutorials/serving.md": ["pip install '.[serve]'"],
        "docs/tutorials/spark.md": ["pip install '.[spark]'"],
    }


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
