"""The log of staged changes: files of checked records, one writer, changes that are durable before a call returns."""
