"""`python -m tagmatch` is the command `tagmatch`."""

from tagmatch.cli import main

if __name__ == "__main__":
    main()
