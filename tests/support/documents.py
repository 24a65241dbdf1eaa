"""Runs the examples of a Markdown document, in order and in one folder, and compares what they say that they give.

A block of code is Python or, indented or fenced as `sh`, for bash. `<!-- not run: REASON -->` before it says why it
cannot be run where the tests run. A comment behind an expression of Python, or behind a command, that begins with a
literal (in JSON, for commands) is what it gives; the order of elements does not count.

    python tests/support/documents.py docs/index.md                 # all that can be run
    python tests/support/documents.py docs/spark.md 'needs Java'    # the blocks left out for that reason
"""

import ast
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: Why a block is left out that tests/spark runs
NEEDS_JAVA = "needs Java"
DOCUMENTS = {str(path.relative_to(ROOT)): path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))}
_DATA = re.compile(r"\]\(([./]*/(?:examples/data|bench/results)/[\w./-]+\.(?:parquet|json))\)")
_MARK = re.compile(r"<!-- not run: (.*) -->\n?")


@dataclass(frozen=True)
class Block:
    """A block of code: its line, its page, and the reason why it is not run, if it is not."""

    document: str
    line: int
    language: str
    code: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(text: str, document: str) -> list[Block]:
    found, reason = [], None
    for token in MarkdownIt().parse(text):
        if token.type in ("fence", "code_block"):
            assert token.map
            language = "sh" if token.type == "code_block" else token.info.strip()
            found.append(Block(document, token.map[0] + 1, language, token.content, reason))
        mark = _MARK.fullmatch(token.content) if token.type == "html_block" else None
        reason = mark[1] if mark else None
    return found


def blocks_in(path: Path) -> list[Block]:
    return blocks_of(path.read_text(), str(path.relative_to(ROOT)))


def download(path: Path) -> None:
    """Copy the data that a document links to into the current folder, as its reader is asked to."""
    for link in _DATA.findall(path.read_text()):
        shutil.copy(path.parent / link, ".")


def run(blocks: list[Block]) -> int:
    """Run blocks in the current folder; returns how many outputs were compared."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    return sum(_run_python(each, namespace) if each.language == "python" else _run_shell(each) for each in blocks)


def _run_python(block: Block, namespace: dict[str, Any]) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(block.code).readline)
    comments = {each.start[0]: each.string.lstrip("# ") for each in tokens if each.type == tokenize.COMMENT}
    compared = 0
    for statement in ast.parse(block.code, str(block)).body:
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            if isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), str(block), "eval"), namespace)
            else:
                exec(compile(ast.Module([statement], []), str(block), "exec"), namespace)
        expected = _literal(comments.get(statement.end_lineno or 0, ""), ast.literal_eval)
        if expected is not _NOTHING:
            given = ast.literal_eval(printed.getvalue()) if printed.getvalue() else value
            assert _unordered(given) == _unordered(expected), f"{block}, line {statement.lineno}: {given!r}"
            compared += 1
    return compared


def _run_shell(block: Block) -> int:
    # Without the JVM that this process may have been given: that has one Spark at a time
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", block.code],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}: ends with {done.returncode}: {done.stderr}"
    comments = (line.partition(" # ")[2].strip() for line in block.code.splitlines())
    expected = [value for value in (_literal(comment, json.loads) for comment in comments) if value is not _NOTHING]
    given = [_unordered(_literal(line, json.loads, is_whole=True)) for line in done.stdout.splitlines()]
    for value in expected:
        assert _unordered(value) in given, f"{block}: gives no {value}, but:\n{done.stdout}"
    return len(expected)


_NOTHING = object()


def _literal(comment: str, parse: Any, *, is_whole: bool = False) -> Any:
    """The longest beginning of a comment that is a literal, before a colon or as a whole."""
    places = [len(comment), *(place.start() for place in re.finditer(":", "" if is_whole else comment))]
    for end in sorted(places, reverse=True):
        with contextlib.suppress(ValueError, SyntaxError):
            return parse(comment[:end])
    return _NOTHING


def _unordered(value: Any) -> Any:
    """A value in which the order of lists and sets does not count."""
    if isinstance(value, pa.Array):
        value = value.to_pylist()
    if isinstance(value, dict):
        return {key: _unordered(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_unordered, value))
    if isinstance(value, list):
        return sorted(map(_unordered, value), key=repr)
    if isinstance(value, set | frozenset):
        return {"a set of": _unordered(list(value))}
    return value


if __name__ == "__main__":
    document, reason = ROOT / sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    wanted = [block for block in blocks_in(document) if block.reason == reason]
    assert wanted, "there are no such blocks"
    download(document)
    print(f"{sys.argv[1]}: {run(wanted)} outputs are as shown")
