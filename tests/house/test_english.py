"""The words of code and docs: turns of phrase that a reader stumbles over, sentences that are too long, spelling."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from support.documents import ROOT

FOLDERS = {"bench", "broker", "deploy", "docs", "examples", "model", "partitioner", "pipeline", "pyspark_tagmatch"}
FOLDERS |= {"release", "tagmatch", "tests", "workloads"}
#: Made from results, so that their words are those of the code
MADE = ROOT / "docs" / "benchmarks"

# A letter in brackets keeps a pattern from finding itself
TURNS = {
    "name the noun": r"\bwha[t] (is|was|comes|came|has|goes|waits)\b",
    "say if": r"\bwher[e] (it|they|there|some|none|nothing|all|one)\b",
    "besides, next to or with": r"\bbesid[e]\b",
    "split the sentence": r"\bof whic[h]\b",
    "drop it, or say whose": r"of (its|their|a) ow[n]\b|of our[s]\b",
    "see, or nothing": r"\b[Aa]s o[f] `",
    "name the role": r"\b(no|some)bod[y]\b|\bwhoeve[r]\b",
    "name who": r"\b[Ww]h[o] (may|asks|calls|has|waits|comes|stages|moves|gives|looks|uses|takes)\b",
    "name the number": r"\bs[o] many\b",
    "begin with the verb": r'^\s*"""Hav[e] ',
    "is, or means": r"\bstands? (in|at|for|besid[e]|behind)\b",
    "no, or unknown": r"\b(is|be) non[e]\b",
    "any": r"\bwhat[e]ver\b|\bwhich[e]ver\b",
    "must, or will": r"\b(is|are) t[o] (be|have)\b",
    "except": r"\bbu[t] for\b",
    "results": r"\b(comes|came|becomes?|became) o[f]\b",
    "while, or during": r"\bmeanwhil[e]\b",
    "leave it out": r"\bi[f] there (is|are) (one|some|any|none)\b|\btha[t] there (is|are)\b",
    "instead of": r"\bin th[e] place of\b|\bfor wan[t] of\b",
    "check": r"\bsee(s|) (that|t[o] it)\b",
}
#: How often each may be found yet: a role is the name of a user of the system; and kernels are compiled anew for a
#: comment in `intrinsics.py`, `chunks.py`, `known_tags.py` or `sphere.py`, or a new name of an argument in `finder.py`
LEFT = {
    "name the noun": 7,
    "name the role": 3,
    "split the sentence": 3,
    "name the number": 2,
    "besides, next to or with": 2,
}
#: Most words of a sentence, in the pages that one reads from the first to the last
MOST_WORDS = 30
#: Pages read from the first line to the last, and those at the top that have been shortened already
READ = sorted(
    [
        *(
            path
            for folder in ("concepts", "guide", "howto", "tutorials")
            for path in (ROOT / "docs" / folder).glob("*.md")
        ),
        *(
            ROOT / "docs" / name
            for name in ("index.md", "glossary.md", "testing.md", "security.md", "spark.md", "reference/limits.md")
        ),
        ROOT / "README.md",
    ]
)
#: Pages in which one looks something up: their sentences are short, too
LOOKED_UP = [ROOT / "docs" / name for name in ("format.md", "serving.md", "subscribers.md")]
#: Words that are "subscription" or "message" in the glossary: only these pages have them, for a reason
OLD_WORDS = re.compile(r"\b(?:search(?:es)?|alerts?|rules?|filters?|events?)\b", re.IGNORECASE)
OLD_WORDS_LEFT = {
    "README.md": (8, "names of uses and of other systems; rules of the house; the search of the site"),
    "docs/concepts/spark_job.md": (2, "a Bloom filter"),
    "docs/glossary.md": (5, "they are explained"),
    "docs/guide/areas.md": (1, "the caption of a picture made by the tutorial of alerts"),
    "docs/guide/command_line.md": (1, "rules for values"),
    "docs/guide/console.md": (3, "the console's search, and the option `filter` of a user"),
    "docs/guide/http.md": (7, "server-sent events"),
    "docs/guide/records.md": (1, "a page of the tutorial"),
    "docs/guide/text.md": (1, "rules of Unicode"),
    "docs/guide/workloads.md": (1, "alerts are one of the generated data sets"),
    "docs/howto/percolator.md": (6, "words of Elasticsearch"),
    "docs/index.md": (6, "names of uses, of other systems and of tutorials"),
    "docs/reference/limits.md": (2, "what other systems do"),
    "docs/security.md": (1, "the option `filter` of a user"),
    "docs/testing.md": (1, "the search of the site"),
    "docs/tutorials/alerts.md": (10, "saved searches, which it says are subscriptions"),
    "docs/tutorials/entitlements.md": (9, "rules of access, which it says are subscriptions"),
    "docs/tutorials/near_me.md": (5, "alerts, which it says are subscriptions"),
}
#: Names, operators and categories of Unicode; and misspelt names, which messages and tests show
KNOWN = (
    "abd atleast befores collet datas nd nin notin ot te whats attribut loaction nam sise siz strin titel valeu wher"
)


def texts() -> Iterator[Path]:
    """Python and Markdown; links are not followed."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in sorted(FOLDERS):
        for parent, _, names in os.walk(ROOT / folder):
            found = (Path(parent, name) for name in sorted(names) if name.endswith((".py", ".md")))
            yield from (path for path in found if MADE not in path.parents)


def turns_in(text: str, pattern: str) -> list[int]:
    """The lines that have a turn, once for each time."""
    return [text.count("\n", 0, found.start()) + 1 for found in re.finditer(pattern, text, re.MULTILINE)]


def sentences_of(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of a page without its blocks of code, and the lines of their paragraphs; code within one is a word."""
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "inline" and token.map:
            shown = {"text": lambda each: each.content, "code_inline": lambda _: "CODE", "softbreak": lambda _: " "}
            plain = "".join(shown[each.type](each) for each in token.children or () if each.type in shown)
            yield from ((token.map[0] + 1, each) for each in re.split(r"(?<=[.!?])[)”\"]?\s+", plain))


def long_sentences(text: str) -> list[int]:
    return [line for line, sentence in sentences_of(text) if len(sentence.split()) > MOST_WORDS]


@pytest.mark.parametrize("advice", TURNS)
def test_turns_of_phrase(advice: str) -> None:
    """No more than are left: the noun or the role is named, the subject goes first, and a sentence claims one thing."""
    pattern = TURNS[advice]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in texts() for line in turns_in(path.read_text(), pattern)]
    assert len(found) <= LEFT.get(advice, 0), f"{advice}: {' '.join(found)}"


def test_turns_are_found() -> None:
    text = "What i" + "s left, and what i" + "s right.\nIt is there, bu" + "t for one: s" + "o many."
    assert turns_in(text, TURNS["name the noun"]) == [1]
    assert turns_in(text, TURNS["except"]) == turns_in(text, TURNS["name the number"]) == [2]
    assert len({path.suffix for path in texts()}) == 2


@pytest.mark.parametrize("path", [*READ, *LOOKED_UP], ids=str)
def test_sentences_are_short(path: Path) -> None:
    assert long_sentences(path.read_text()) == []


def test_words_are_those_of_the_glossary() -> None:
    """Other systems' own words are on the pages for those who come from them."""
    found = {}
    for path in READ:
        words = sum(len(OLD_WORDS.findall(sentence)) for _, sentence in sentences_of(path.read_text()))
        if words and not path.name.startswith("from_"):
            found[str(path.relative_to(ROOT))] = words
    assert found == {page: count for page, (count, _) in OLD_WORDS_LEFT.items()}


def test_long_sentences_are_found() -> None:
    words = "word " * 28
    block = f"```\n{words}{words}\n```\n"
    text = f"# Title\n\nA very {words}end. A `b c` {words.strip()}.\n\n- {words}and one more.\n\n{block}"
    assert long_sentences(text) == [3, 5]


def test_words_are_spelt_right() -> None:
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", ",".join(KNOWN.split())]
    checked = [path for path in texts() if path != Path(__file__)]
    done = subprocess.run([*command, *checked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stdout + done.stderr, done.stdout + done.stderr
    wrong = subprocess.run([*command, "-"], input="teh word", capture_output=True, text=True, check=False)
    assert "teh" in wrong.stdout
