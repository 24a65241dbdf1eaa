"""What subscriptions ask for beside their tags, in columns: expressions, constraints, and the rows of tags for them."""
