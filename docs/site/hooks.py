"""Adds to the Markdown of `docs/`: commands, examples and results from their own places."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

from tagmatch.cli.app import app
from tagmatch.model import VERSION

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(((?:\.\./)*)\.\./((?:examples|bench/results)/[^)#]+)\)")
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([\w.]+\.svg)\)$", re.MULTILINE)
COMMENT = re.compile(r"( *)(\S.*\S) {2,}# (.*)")
RESULT = re.compile(r"[\[{(\"'\d-]|True|False|None")
#: What the page of tests counts: files of `tests`, and the lines counted in them
COUNTED = {
    "tests": ("test_*.py", r"^ *(?:async )?def test_"),
    "properties": ("test_*.py", r"^ *@given\("),
    "mutants": ("mutants/*.py", r"^# .*\n(?:[\w/]+\.py: tests/|[-+ ])"),
    "programs": ("faults/*.py", r"^PROGRAM = "),
}
#: Longer lines of code have their comment on a line before them, so that a phone shows both
LONG = 50


def on_config(config: Any) -> None:
    """Name the version on each page: each version has a site, which is a folder."""
    config.site_name += f" {VERSION}"


def on_files(files: Files, config: Any) -> Files:
    """Add the page that is made at build time, and the examples and results that pages link to."""
    files.append(File.generated(config, "reference/commands.md", content=commands()))
    data = [*(ROOT / "examples" / "data").glob("*.parquet"), *(ROOT / "bench" / "results").glob("two-cores/*.json")]
    for path in sorted([*(ROOT / "examples").glob("*.py"), *data]):
        name = str(path.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to examples into the site; put pictures into the page, whose colours they take."""
    folder = ROOT / "docs" / Path(page.file.src_uri).parent
    markdown = OUTSIDE.sub(r"](\1\2)", markdown)
    for name in COUNTED:
        markdown = markdown.replace(f"<!-- count {name} -->", f"{count(name):,}")
    markdown = markdown.replace("<!-- runs -->", runs())
    markdown = results_below(markdown)
    return PICTURE.sub(lambda found: (folder / found[2]).read_text().strip(), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """A column without a title has no header, which readers of screens would announce."""
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Name what the theme leaves without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def count(name: str) -> int:
    """How many there are in the source code."""
    files, line = COUNTED[name]
    texts = (path.read_text() for path in (ROOT / "tests").rglob(files))
    return sum(len(re.findall(line, text, re.MULTILINE)) for text in texts)


def runs() -> str:
    """The counts of the last long runs."""
    found = json.loads(Path(__file__).with_name("runs.json").read_text())
    rows = ["| last run of | when, commit | tried | skipped | failed |", "|---|---|--:|--:|--:|"]
    for name in ("nightly", "torture"):
        if own := found.get(name):
            counts = " | ".join(f"{own[each]:,}" for each in ("tried", "skipped", "failed"))
            rows.append(f"| `make {name}` | {own['date']}, {own['commit']} | {counts} |")
        else:
            rows.append(f"| `make {name}` | not recorded yet | | | |")
    return "\n".join(rows)


def results_below(markdown: str) -> str:
    """Blocks of code with each result on a line below its statement, and comments of long lines above them."""
    lines = markdown.split("\n")
    for block in MarkdownIt().parse(markdown):
        if block.type in ("fence", "code_block") and block.map:
            for number in range(*block.map):
                if found := COMMENT.fullmatch(lines[number]):
                    indent, code, comment = found.groups()
                    if RESULT.match(comment) or code.startswith("print("):
                        lines[number] = f"{indent}{code}\n{indent}# {comment}"
                    elif len(lines[number]) > LONG:
                        lines[number] = f"{indent}# {comment}\n{indent}{code}"
    return "\n".join(lines)


def commands() -> str:
    """The command line, as its code describes it."""
    text = ["# Commands", "", "Made from the code of the command line: the same as `tagmatch COMMAND --help`."]
    for each in app.registered_commands:
        name = each.name or each.callback.__name__  # type: ignore[union-attr]
        shown = CliRunner().invoke(app, [name, "--help"], prog_name="tagmatch", env={"COLUMNS": "90", "NO_COLOR": "1"})
        assert shown.exit_code == 0, shown.output
        text += ["", f"## tagmatch {name}", "", "```text", shown.output.strip(), "```"]
    return "\n".join(text)
