"""Parameters as the reference shows them: with their own types, and values as defaults."""

from __future__ import annotations

import re
from typing import Any

import griffe

from tagmatch.model.options import MATCH_DEFAULTS

_PARAMETERS = re.compile(r"(?s)(?<=\nParameters\n----------\n).*?(?=\n\w+\n---|\Z)")
_TOGETHER = re.compile(r"(?m)^(\w+(?:, \w+)+)((?: : .*)?\n(?:(?: .*)?(?:\n|\Z))+)")
_DEFAULT = re.compile(r"MATCH_DEFAULTS\.(\w+)")


class OwnParameters(griffe.Extension):
    """An extension of griffe, which reads docstrings: it gives names that stand together the type of the first."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Called with each function that is found."""
        for parameter in func.parameters:
            if found := _DEFAULT.fullmatch(str(parameter.default)):
                parameter.default = repr(getattr(MATCH_DEFAULTS, found[1]))
        if func.docstring is not None:
            func.docstring.value = _PARAMETERS.sub(
                lambda section: _TOGETHER.sub(_apart, section[0]), func.docstring.value
            )


def _apart(found: re.Match[str]) -> str:
    return "".join(f"{name}{found[2].rstrip()}\n" for name in found[1].split(", ")) + "\n"
