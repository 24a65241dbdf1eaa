"""The rules that README and docs hold: what runs and what does not, links, limits; `test_examples.py` runs them."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from support.documents import DOCUMENTS, NEEDS_JAVA, ROOT, blocks_in, blocks_of, run
from support.newcomers import HOW_TO, ON_SPARK, PAGES, TUTORIALS, how_to_install, needed_for

from tagmatch import PipelineOptions
from tagmatch.engine import MAX_KEYS
from tagmatch.model.kernels.tag_table import MAX_TAGS
from tagmatch.partitioner.local import MAX_ROWS

#: Pages that the build of the site makes, which checks links to them itself
MADE = ("reference/commands.md",)

#: Why a block may be left out, and by whom it is run then
NEEDS_DOCKER = "needs Docker"
REASONS = {NEEDS_JAVA, NEEDS_DOCKER, "needs a checkout", "needs a GPU", "needs a cluster", "takes minutes", None}
_SYSTEMS = ("a broker", "ClickHouse", "Delta and Iceberg", "Elasticsearch", "Node", "PostgreSQL", "Redis", "Vespa")
#: The other side of pages for those who come from another system
OTHERS = {f"needs {name}" for name in _SYSTEMS}


def test_what_is_not_run_says_why() -> None:
    """Most blocks are run; README has no others, except those that need a checkout."""
    blocks = [block for path in DOCUMENTS.values() for block in blocks_in(path)]
    assert {block.language for block in blocks} == {"python", "sh"}
    assert {block.reason for block in blocks} <= REASONS | OTHERS
    assert all("/from_" in block.document for block in blocks if block.reason in OTHERS)
    left = [line for block in blocks if block.reason == NEEDS_DOCKER for line in block.code.splitlines() if line]
    assert left
    assert all(line.startswith("docker ") for line in left)
    readme = Counter(block.reason for block in blocks if block.document == "README.md")
    assert readme[None] >= 2
    assert readme.keys() <= {None, "needs a checkout"}


def test_links_lead_somewhere() -> None:
    """Those within the repository."""
    for name, path in DOCUMENTS.items():
        tokens = [child for token in MarkdownIt().parse(path.read_text()) for child in token.children or ()]
        targets = [str(token.attrGet("href") or token.attrGet("src") or "") for token in tokens]
        within = [target for target in targets if target and not re.match(r"[a-z]+:|#", target)]
        paths = {(path.parent / target.partition("#")[0]).resolve() for target in within}
        assert not {each for each in paths if not each.exists()} - {ROOT / "docs" / made for made in MADE}, name


def test_titles_of_pages_differ() -> None:
    texts = [path.read_text().splitlines() for path in sorted((ROOT / "docs").rglob("*.md"))]
    titles = [next(line for line in lines if line.startswith("# ")).strip() for lines in texts]
    assert len(set(titles)) == len(titles), sorted(title for title in titles if titles.count(title) > 1)


def test_limits_are_those_of_the_code() -> None:
    rows = DOCUMENTS["docs/reference/limits.md"].read_text().splitlines()
    limits = {cells[1].strip(): cells[2] for cells in (row.split("|") for row in rows) if len(cells) > 2}
    powers, options = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"), PipelineOptions()
    for what, most in {
        "distinct stored sets": MAX_ROWS,
        "staged changes": MAX_ROWS,
        "different tags": MAX_TAGS,
        "keys that one call": MAX_KEYS,
        "a key": np.iinfo(np.uint64).max,
    }.items():
        (cell,) = (cell for name, cell in limits.items() if name.startswith(what))
        power, less = re.search(r"2([⁰¹²³⁴⁵⁶⁷⁸⁹]+) − (\d)", cell).groups()  # type: ignore[union-attr]
        assert most == 2 ** int(power.translate(powers)) - int(less), what
    in_flight = limits["queries in flight, bytes of their answers"]
    assert f" {options.max_queries:,}; {options.max_result_bytes >> 20} MiB " in in_flight


def test_the_guide_to_spark_is_read_in_ten_minutes() -> None:
    assert len(DOCUMENTS["docs/spark.md"].read_text().split()) <= 2600


# -- start page, tutorials and how-to pages ----------------------------------------------------------------------------


def test_every_page_says_how_to_install_what_it_needs() -> None:
    installed = [line for block in how_to_install() for line in block.code.splitlines()]
    assert any(re.match(r"pip install \.$", line) for line in installed), installed
    assert {page: needed_for(page) for page in PAGES if needed_for(page)} == {
        "docs/tutorials/alerts.md": ["pip install '.[serve]'", "pip install fastapi httpx2 uvicorn"],
        "docs/tutorials/entitlements.md": ["pip install fastapi httpx2 uvicorn"],
        "docs/tutorials/flags.md": ["pip install fastapi httpx2 uvicorn"],
        "docs/tutorials/kafka.md": ["pip install '.[serve,kafka]'"],
        "docs/tutorials/serving.md": ["pip install '.[serve]'"],
        "docs/tutorials/spark.md": ["pip install '.[spark]'"],
    }


@pytest.mark.parametrize("page", [*TUTORIALS, *HOW_TO])
def test_page_begins_with_its_end(page: str) -> None:
    """And says what it needs; and it is short; every block of a tutorial is run."""
    text = (ROOT / page).read_text()
    before, _, _ = text.partition("\n## ")
    assert "**Afterwards** " in before
    assert "**You need** " in before
    assert len(text.splitlines()) <= 120
    reasons = {block.reason for block in blocks_in(ROOT / page)}
    assert page in HOW_TO or reasons == ({NEEDS_JAVA} if page == ON_SPARK else {None})


# -- that the check of examples fails ----------------------------------------------------------------------------------


def test_outputs_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = """
```python
from pathlib import Path

x = [2, 1]
x  # [1, 2]: in any order
print({"a": x})  # {"a": [2, 1]}
```

    echo '{"id": 0, "keys": [7, 8]}'    # {"keys":[8,7],"id":0}
    echo done  # no output that is compared
    echo 6 > six

```python
x[0] + int(Path("six").read_text())  # 8
```
"""
    assert run(blocks_of(text, "a.md")) == 4


@pytest.mark.parametrize(
    "text",
    [
        "```python\n[1, 2]  # [1, 3]\n```",
        "```python\nprint([1, 2])  # [1, 3]: wrong\n```",
        "    echo '[1]'  # [2]",
        "    false\n    true",
        "    false | true",
        "```python\nassert False\n```",
    ],
)
def test_wrong_examples_are_found(text: str) -> None:
    with pytest.raises(AssertionError):
        run(blocks_of(text, "a.md"))
