"""Files and streams of sets, queries and answers."""
