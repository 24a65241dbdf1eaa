"""The command line `tagmatch-bench`."""
