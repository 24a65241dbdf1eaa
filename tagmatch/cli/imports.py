"""What is not to be imported."""


class NoPandas:
    """Finds no pandas.

    Arrow imports it, which takes a second, when it is first given a Python object; the command has no use for it. Told
    that there is none, Arrow does without.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:  # noqa: ARG004
        """As finders of modules do."""
        if name == "pandas":
            raise ModuleNotFoundError("the command tagmatch does without pandas", name=name)
