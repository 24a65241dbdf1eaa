"""What a subscription asks of a message beside its tags: constraints on attributes, and the language of these."""
