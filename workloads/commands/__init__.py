"""The command line `tagmatch-workload`."""
