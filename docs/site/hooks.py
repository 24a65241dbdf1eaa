"""What the site has beside the Markdown of `docs/`: commands and plots from where they are kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from typer.testing import CliRunner

from tagmatch.cli.app import app
from tagmatch.model.where.constraints import OPERATORS

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"\]\(((?:\.\./)*)\.\./(examples/[^)#]+)\)")
RECORDED = re.compile(r"\]\(benchmarks/([\w-]+)\)")  # a folder, which a site cannot show
PICTURE = re.compile(r"^!\[([^\]]*)\]\(([\w.]+\.svg)\)$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made at build time, and the examples that pages link to."""
    for name, text in (
        ("reference/commands.md", commands()),
        ("gallery.md", gallery()),
    ):
        files.append(File.generated(config, name, content=text))
    for path in sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "data").glob("*.parquet")]):
        name = str(path.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to examples into the site; put pictures into the page, where they take its colours."""
    folder = ROOT / "docs" / Path(page.file.src_uri).parent
    markdown = OUTSIDE.sub(r"](\1\2)", markdown)
    markdown = markdown.replace("<!-- operators -->", operators())
    markdown = RECORDED.sub(r"](gallery.md#\1)", markdown)
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


def gallery() -> str:
    """Every recorded plot, with a link to its table and text."""
    text = ["# Gallery", "", "Every recorded plot, by machine. Values that a paper prints are drawn beside ours."]
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    folders = sorted(path for path in (ROOT / "docs" / "benchmarks").iterdir() if path.is_dir())
    for folder in folders:
        plots = [path for path in sorted(folder.glob("*.json")) if path.with_suffix(".png").exists()]
        if not plots:
            continue
        text += ["", f"## {folder.name}"]
        for path in plots:
            plot = f"benchmarks/{folder.name}/{path.stem}.png"
            recorded = re.search(rf"!\[([^\]]*)\]\({re.escape(plot)}\)", benchmarks)
            title = recorded[1] if recorded else json.loads(path.read_text())["title"]
            text += ["", f"### {title}", "", f"![{title}]({plot})"]
            text += ["", "[All results](benchmarks.md) has its numbers." if recorded else "Only the plot is recorded."]
    return "\n".join(text)
