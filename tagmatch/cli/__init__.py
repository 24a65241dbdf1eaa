"""Command lines. `main` is the entry point of the command `tagmatch`."""


def main() -> None:
    """Run the command `tagmatch`; from its first act on, Ctrl-C ends it with one line and exit code 130."""
    from tagmatch.cli.process import NotNeeded, interruptible, reserve_standard_streams

    reserve_standard_streams()
    with interruptible():
        import sys

        sys.meta_path.insert(0, NotNeeded())
        from tagmatch.cli.app import app
        from tagmatch.cli.shared import run

        run(app)
