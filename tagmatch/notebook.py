"""What notebooks show of an index: its figures, what `explain` finds, and what `stats` says, as HTML.

Jupyter and others call `_repr_html_`. Tables have no colours of theirs, so that they are legible in light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeVar

from tagmatch.model.where.constraints import Where

#: Rows of a table, and keys of a set, that are shown; how many more there are is said
MOST_ROWS, MOST_KEYS = 50, 10

#: Figures that `overview` shows in any case
_ALWAYS = ("sets", "keys", "tags", "staged", "layout", "index_bytes")

K = TypeVar("K", int, str)


class Explanation(list[tuple[frozenset[str], tuple[K, ...]]]):
    """What `TagMatch.explain` returns: a list of matching sets, each with its keys; notebooks show it as a table."""

    def _repr_html_(self) -> str:
        return _sets(self)


class Stats(dict[str, Any]):
    """What `TagMatch.stats` returns: a dict; notebooks show it as a table, with nested values folded away."""

    def _repr_html_(self) -> str:
        return _figures("figures of the index", self)


def overview(stats: Mapping[str, Any]) -> str:
    """HTML of a `TagMatch` as notebooks show it: what it holds, where, and what matches it."""
    kept = {name: stats[name] for name in _ALWAYS}
    kept |= {name: stats[name] for name in ("path", "with_areas", "positions") if stats[name]}
    kept["with_conditions"] = sum(stats["with_conditions"].values())
    kept["matched on"] = f"{', '.join(stats['devices'])}; {_count(stats['threads'], 'thread')}"
    return _figures("TagMatch", kept)


def _sets(sets: Sequence[tuple[frozenset[str], tuple[int | str, ...]]]) -> str:
    asks = any(isinstance(tag, Where) for tags, _ in sets for tag in tags)
    rows = [
        [_codes(tags) or "<i>none</i>", *([_conditions(tags)] if asks else []), _keys(keys)]
        for tags, keys in sets[:MOST_ROWS]
    ]
    heads = ["tags", *(["conditions"] if asks else []), "keys"]
    return _table(_count(len(sets), "matching set"), heads, rows, len(sets))


def _figures(title: str, figures: Mapping[str, Any]) -> str:
    return _table(
        title, ["", ""], [[escape(str(name)), _value(value)] for name, value in figures.items()], len(figures)
    )


def _value(value: object) -> str:
    """A figure as people read it; one with parts is folded away under their number."""
    if isinstance(value, Mapping) and value:
        rows = [[escape(str(name)), _value(part)] for name, part in value.items()]
        return f"<details><summary>{len(value)}</summary>{_table('', ['', ''], rows, len(rows))}</details>"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple | set | frozenset) and value:
        return "<br>".join(_value(part) for part in list(value)[:MOST_ROWS])
    return "–" if value is None or value in ([], {}, "") else escape(str(value))


def _codes(tags: frozenset[str]) -> str:
    return " ".join(f"<code>{escape(tag)}</code>" for tag in sorted(tags, key=str) if not isinstance(tag, Where))


def _conditions(tags: frozenset[str]) -> str:
    asked = [tag for tag in sorted(tags, key=str) if isinstance(tag, Where)]
    ways = [f" (by {escape(each.path)})" if each.path else "" for each in asked]
    return "<br>".join(f"<code>{escape(str(each))}</code>{way}" for each, way in zip(asked, ways, strict=True))


def _keys(keys: tuple[int | str, ...]) -> str:
    more = f" and {len(keys) - MOST_KEYS:,} more" if len(keys) > MOST_KEYS else ""
    return escape(", ".join(map(str, keys[:MOST_KEYS]))) + more


def _count(number: int, of_what: str) -> str:
    return f"{number:,} {of_what}{'' if number == 1 else 's'}"


def _table(title: str, heads: list[str], rows: list[list[str]], total: int) -> str:
    """A table of cells that are HTML already, and how many rows there are beyond those shown."""
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = f"<thead><tr>{''.join(f'<th>{name}</th>' for name in heads)}</tr></thead>" if any(heads) else ""
    lines = (f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows[:MOST_ROWS])
    more = f"<p>and {total - MOST_ROWS:,} more</p>" if total > MOST_ROWS else ""
    return f"<table>{caption}{head}<tbody>{''.join(lines)}</tbody></table>{more}"
