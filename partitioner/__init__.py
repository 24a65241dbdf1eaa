"""Offline: from changes to a snapshot in one of the two layouts (§3.1)."""
