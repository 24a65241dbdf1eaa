"""Sets with constraints: a constraint is a tag that a message has where it holds (CCM 2011, PCM 2014)."""
