"""A mistake, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake.

    Attributes
    ----------
    name : str
    file : str
    right, wrong : str
        The text that the file has once, and its replacement.
    tests : str
        Arguments for pytest, separated by spaces: those that see the mistake, and few others.
    simulated : bool
        Whether the tests are of CUDA, which is simulated then.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: str
    simulated: bool = False

    def mutated(self, root: Path) -> str:
        """The text of the file with the mistake.

        Raises
        ------
        ValueError
            The text that is right is not there once, or that which is wrong is no Python.
        """
        text = (root / self.file).read_text()
        if (count := text.count(self.right)) != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.right!r} {count} times, and not once")
        mutated = text.replace(self.right, self.wrong)
        try:
            compile(mutated, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} would be no Python: {error}") from None
        return mutated
