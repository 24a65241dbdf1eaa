"""What is not to be imported."""

_NAMES = frozenset({"pandas", "scipy"})


class NotNeeded:
    """Finds no pandas and no SciPy.

    Arrow imports the first when it is first given a Python object, and Numba the second when it first compiles, which
    takes a second each; the command has no use for them. Without them, both
    work all the same. And if memory is short, SciPy's linear algebra waits for it for ever.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """As finders of modules do."""
        if name in _NAMES:
            raise ModuleNotFoundError(f"the command tagmatch does without {name}", name=name)
