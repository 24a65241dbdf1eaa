"""The conditions that a subscription adds to its tags: constraints on attributes, and their language."""
