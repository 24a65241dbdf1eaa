"""The operators of constraints: one table, from which the language, columns, their kernels, texts and errors are made.

A new operator that holds for values in ranges is a line here. Two cuts say what a range is: a cut is a side of a key,
`[` just before it, `]` just after it, `^` after all keys that begin with it, and a place, which says by what key it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

Side = Literal["[", "]", "^"]
#: Kinds of constraints: ranges of values, the end of a text, a part of it, a tag that must not be there, an area
Kind = Literal["r", "s", "c", "t", "a"]
RANGES: Kind = "r"
SUFFIX: Kind = "s"
CONTAINS: Kind = "c"
NO_TAG: Kind = "t"
AREA: Kind = "a"

#: Where a cut may be: before all values of the operand's type, after them, at the operand, at the second operand
BEGIN, END, OPERAND, SECOND = "bevw"
#: How many operands there are, if that is not a number: a list of any length
MANY = -1
#: What operands are: any values that equal something, those that have an order, texts
Takes = Literal["values", "ordered", "texts"]


@dataclass(frozen=True, slots=True)
class Operator:
    """What may stand between an attribute and what it is compared with."""

    name: str  # in expressions, and in the field `op` of a struct
    means: str  # what it holds for, in words: `a` is the attribute, `v` and `w` are the operands
    count: int  # of operands, or `MANY`
    takes: Takes = "values"
    cuts: tuple[tuple[Side, str], ...] = ()  # two, for each operand or for both: sides and places
    is_other: bool = False  # it holds for what lies outside of the cuts, of all values
    kind: Kind = RANGES
    negated: bool = False  # it holds if no value of the attribute satisfies the cuts
    elsewhere: tuple[str, ...] = ()  # what other languages write, in small letters

    @property
    def is_symbol(self) -> bool:
        """Whether its name is no word."""
        return not self.name[0].isalpha()

    @property
    def syntax(self) -> str:
        """How a test of the attribute `a` is written."""
        operand = '"…"' if self.takes == "texts" else "v"
        return self.written("a", [operand, "…"] if self.count == MANY else [operand, "w"][: self.count])

    def written(self, attribute: str, operands: list[str]) -> str:
        """A test as an expression has it."""
        if self.count == 0:
            return f"{self.name}({attribute})"
        if self.count == MANY:
            return f"{attribute} {self.name} {{{', '.join(operands)}}}"
        return f"{attribute} {self.name} {' and '.join(operands)}"


def _cuts(written: str) -> tuple[tuple[Side, str], ...]:
    """Two cuts as they are written here: `[v]w` is from `v` to `w`, with both."""
    return tuple((cast(Side, written[at]), written[at + 1]) for at in (0, 2))


_TABLE = (
    Operator("=", "equals `v`", 1, cuts=_cuts("[v]v"), elsewhere=("==", "===")),
    Operator("!=", "does not equal `v`", 1, cuts=_cuts("[v]v"), is_other=True, elsewhere=("<>", "!==")),
    Operator("<", "comes before `v`, of the same type", 1, "ordered", _cuts("[b[v")),
    Operator("<=", "comes before `v`, or equals it", 1, "ordered", _cuts("[b]v"), elsewhere=("=<",)),
    Operator(">", "comes after `v`, of the same type", 1, "ordered", _cuts("]v[e")),
    Operator(">=", "comes after `v`, or equals it", 1, "ordered", _cuts("[v[e"), elsewhere=("=>",)),
    Operator("between", "lies between both, or equals one; `v` is at most `w`", 2, "ordered", _cuts("[v]w")),
    Operator("in", "equals one of them", MANY, cuts=_cuts("[v]v")),
    Operator("not in", "equals none of them", MANY, cuts=_cuts("[v]v"), is_other=True),
    Operator("prefix", "is a text that begins with it", 1, "texts", _cuts("[v^v"), elsewhere=("like", "startswith")),
    Operator("suffix", "is a text that ends with it", 1, "texts", kind=SUFFIX, elsewhere=("endswith",)),
    Operator("contains", "is a text that contains it", 1, "texts", kind=CONTAINS),
    Operator("exists", "is any, even NaN", 0, is_other=True),
    Operator("not exists", "(there is no value)", 0, is_other=True, negated=True),
)
#: By name, in the order in which they are shown
OPERATORS = {operator.name: operator for operator in _TABLE}
