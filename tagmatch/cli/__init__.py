"""Command lines. `main` is the entry point of the command `tagmatch`."""


def main() -> None:
    """Run the command `tagmatch`; from its first act on, Ctrl-C ends it with one line and exit code 130."""
    from tagmatch.cli.interrupt import interruptible
    from tagmatch.cli.process import reserve_standard_streams

    reserve_standard_streams()
    with interruptible():
        import sys

        from tagmatch.cli.process import NotNeeded

        sys.meta_path.insert(0, NotNeeded())
        from tagmatch.cli.app import app
        from tagmatch.cli.run import run

        run(app)
