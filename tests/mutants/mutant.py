"""A mistake, as data."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake: `wrong` is in place of the text `right`, which the file has once.

    `tests` are arguments for pytest, separated by spaces: those that see the mistake, and few others.
    """

    name: str
    file: str
    tests: str
    right: str
    wrong: str

    def mutated(self, root: Path) -> str:
        """The text of the file with the mistake; ValueError: it does not fit, or would be no Python."""
        text = (root / self.file).read_text()
        if (count := text.count(self.right)) != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.right!r} {count} times, and not once")
        mutated = text.replace(self.right, self.wrong)
        try:
            compile(mutated, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} would be no Python: {error}") from None
        return mutated


def mutants_in(text: str) -> Iterator[Mutant]:
    """Mistakes as patches: `# NAME`, `FILE: TESTS`, and lines that are gone (`-`), new (`+`) or stay (a space).

    Where the second line is missing, it is that of the one before.
    """
    place = ""
    for one in text.split("\n# ")[1:]:
        name, *lines = one.rstrip("\n").split("\n")
        if lines[0][:1] not in "-+ ":
            place = lines.pop(0)
        right, wrong = ("\n".join(line[1:] for line in lines if line[:1] != other) for other in "+-")
        yield Mutant(name, *place.split(": "), right, wrong)
