"""The command lines `tagmatch-bench` and `tagmatch-workload`."""
