"""Snapshots in folders and on object stores."""
