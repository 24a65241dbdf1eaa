"""README and docs: every example runs as it stands, in order, in an empty folder, and gives what it says."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from markdown_it import MarkdownIt
from support.documents import NEEDS_JAVA, ROOT, Block, blocks_in, blocks_of, download, run
from support.newcomers import PAGES

from tagmatch import PipelineOptions
from tagmatch.engine import MAX_KEYS
from tagmatch.model.kernels.tag_table import MAX_TAGS
from tagmatch.partitioner.local import MAX_ROWS
from tagmatch.workloads.bench.harness.report import number

DOCUMENTS = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}

#: Pages that the build of the site makes, which checks links to them itself
MADE = ("reference/commands.md", "gallery.md")

#: Why a block may be left out, and by whom it is run then
NEEDS_DOCKER = "needs Docker"
REASONS = {NEEDS_JAVA, NEEDS_DOCKER, "needs a checkout", "needs a GPU", "needs a cluster", "takes minutes"}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in PAGES])  # these: test_newcomer.py
def test_examples_run(name: str) -> None:
    download(DOCUMENTS[name])
    compared = run([block for block in blocks_in(DOCUMENTS[name]) if block.reason is None])
    print(f"{name}: {compared} outputs are as shown")


def test_what_is_not_run_says_why() -> None:
    """Most is run; of what is not, README has only what a checkout is needed for."""
    blocks = [block for path in DOCUMENTS.values() for block in blocks_in(path)]
    for block in blocks:
        assert block.language in ("python", "sh"), f"{block}: in which language is this?"
        print(block, block.reason or "runs")
    assert {block.reason for block in blocks if block.reason} <= REASONS
    left = [line for block in blocks if block.reason == NEEDS_DOCKER for line in block.code.splitlines() if line]
    assert left
    assert [line for line in left if not line.startswith("docker ")] == []
    readme = Counter(block.reason for block in blocks if block.document == "README.md")
    assert readme[None] >= 2
    assert readme.keys() <= {None, "needs a checkout"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    """Those within the repository."""
    tokens = [child for token in MarkdownIt().parse(DOCUMENTS[name].read_text()) for child in token.children or ()]
    targets = [str(token.attrGet("href") or token.attrGet("src") or "") for token in tokens]
    within = [target for target in targets if target and not re.match(r"[a-z]+:|#", target)]
    paths = {(DOCUMENTS[name].parent / target.partition("#")[0]).resolve() for target in within}
    missing = {path for path in paths if not path.exists()} - {ROOT / "docs" / made for made in MADE}
    assert not missing


def test_limits_are_those_of_the_code() -> None:
    rows = DOCUMENTS["docs/reference/limits.md"].read_text().splitlines()
    limits = {cells[1].strip(): cells[2] for cells in (row.split("|") for row in rows) if len(cells) > 2}
    powers = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")

    def limit(what: str) -> int:
        (cell,) = (cell for name, cell in limits.items() if name.startswith(what))
        power, less = re.search(r"2([⁰¹²³⁴⁵⁶⁷⁸⁹]+) − (\d)", cell).groups()  # type: ignore[union-attr]
        return 2 ** int(power.translate(powers)) - int(less)

    assert limit("distinct stored sets") == limit("staged changes") == MAX_ROWS
    assert limit("different tags") == MAX_TAGS
    assert limit("keys that one call") == MAX_KEYS
    assert limit("a key") == np.iinfo(np.uint64).max
    options = PipelineOptions()
    in_flight = limits["queries in flight, bytes of their answers"]
    assert f" {options.max_queries:,}; {options.max_result_bytes >> 20} MiB " in in_flight


# -- recorded figures --------------------------------------------------------------------------------------------------

RECORDED = {str(path.relative_to(ROOT / "docs" / "benchmarks")): path for path in ROOT.glob("docs/benchmarks/*/*.json")}
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.mark.parametrize("name", [name for name in RECORDED if "/gpu-" not in name])  # which are in tables of their own
def test_tables_are_those_that_were_recorded(name: str) -> None:
    result = json.loads(RECORDED[name].read_text())
    plot = f"![{result['title']}](benchmarks/{name.removesuffix('.json')}.png)"
    assert BENCHMARKS.count(plot) == 1
    section = BENCHMARKS.partition(plot)[2].partition("\n### ")[0]
    # Without cells that are empty, of what was not measured there
    tabled = [[cell for cell in map(str.strip, line.split("|")) if cell] for line in section.splitlines()]
    for panel in result["panels"]:
        rows: dict[str, list[str]] = {}
        for value in panel["values"]:
            rows.setdefault(value["system"], []).append(number(value["value"]))
        for system, values in rows.items():
            if set(values) != {"0"}:
                assert [system, *values] in tabled


@pytest.mark.parametrize("name", [name for name in RECORDED if "/gpu-" in name])
def test_values_of_devices_are_those_that_were_recorded(name: str) -> None:
    result = json.loads(RECORDED[name].read_text())
    for value in (value for panel in result["panels"] for value in panel["values"]):
        assert f" {number(value['value'])} " in BENCHMARKS, value["system"]


def test_results_of_changed_code_are_named() -> None:
    """Those that nobody can measure again."""
    _, _, named = BENCHMARKS.partition("**Not reproducible**")
    named, _, _ = named.partition("\n\n")
    for name, path in RECORDED.items():
        found = json.loads(path.read_text())["circumstances"]
        commit, dirty, _ = found["commit"].partition("-dirty")
        changed = bool(dirty) or bool(found.get("changed_files"))
        assert (f"`{name}`" in named) == changed, name
        assert not changed or commit[:7] in named


def test_figures_say_on_which_device_they_ran() -> None:
    """Each section with measured values of our own systems."""
    sections = [section for section in re.split(r"(?m)^##+ ", BENCHMARKS) if re.search(r"(?m)^\| tagmatch", section)]
    measured = [section for section in sections if not section.startswith("The systems\n")]
    assert measured
    for section in measured:
        assert re.search(r"on the CPU|on CUDA devices", section), section.partition("\n")[0]


# -- that the check fails ----------------------------------------------------------------------------------------------


def blocks(text: str) -> list[Block]:
    return blocks_of(text, "a.md")


def test_blocks_are_found() -> None:
    text = "a\n\n    true\n\n<!-- not run: needs a GPU -->\n```python\nx = 1\n```\n\n```sh\nls\n```\n"
    assert blocks(text) == [
        Block("a.md", 3, "sh", "true\n", None),
        Block("a.md", 6, "python", "x = 1\n", "needs a GPU"),
        Block("a.md", 10, "sh", "ls\n", None),
    ]


def test_outputs_are_compared() -> None:
    text = """
```python
x = [2, 1]
x  # [1, 2]: in any order
print({"a": x})  # {"a": [2, 1]}
```

    echo '{"id": 0, "keys": [7, 8]}'    # {"keys":[8,7],"id":0}
    echo done  # no output that is compared
"""
    assert run(blocks(text)) == 3


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
        run(blocks(text))


def test_blocks_of_a_document_share_names_and_the_folder() -> None:
    text = """
```python
from pathlib import Path

x = 5
```

    echo 6 > six

```python
x + int(Path("six").read_text())  # 11
```
"""
    assert run(blocks(text)) == 1
