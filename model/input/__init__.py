"""The conditions of subscriptions in columns: expressions, constraints, and the rows of tags made of them."""
