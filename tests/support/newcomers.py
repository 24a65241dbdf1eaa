"""What somebody reads who has just found tagmatch: the start page and the tutorials, and how-to pages."""

from __future__ import annotations

from support.documents import ROOT

TUTORIALS, HOW_TO = (
    [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs" / folder).glob("*.md"))]
    for folder in ("tutorials", "howto")
)
#: It needs Java; tests/spark runs it, with the JVM that is there
ON_SPARK = "docs/tutorials/spark.md"
PAGES = ["docs/index.md", *(page for page in TUTORIALS if page != ON_SPARK)]
