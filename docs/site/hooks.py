"""Adds to the Markdown of `docs/`: commands, examples and results from their own places."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

from tagmatch.cli.app import app
from tagmatch.model.where.constraints import OPERATORS

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(((?:\.\./)*)\.\./((?:examples|bench/results)/[^)#]+)\)")
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([\w.]+\.svg)\)$", re.MULTILINE)


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
    markdown = markdown.replace("<!-- operators -->", operators())
    return PICTURE.sub(lambda found: (folder / found[2]).read_text().strip(), markdown)


def operators() -> str:
    """The operators of conditions, from their table."""
    rows = [f"| `{own.syntax}` | {own.means} |" for own in OPERATORS.values() if not own.negated]
    return "\n".join(["| test | holds for a value that |", "|---|---|", *rows])


def commands() -> str:
    """The command line, as its code describes it."""
    text = ["# Commands", "", "Made from the code of the command line: the same as `tagmatch COMMAND --help`."]
    for each in app.registered_commands:
        name = each.name or each.callback.__name__  # type: ignore[union-attr]
        shown = CliRunner().invoke(app, [name, "--help"], prog_name="tagmatch", env={"COLUMNS": "90", "NO_COLOR": "1"})
        assert shown.exit_code == 0, shown.output
        text += ["", f"## tagmatch {name}", "", "```text", shown.output.strip(), "```"]
    return "\n".join(text)
