"""Sets with constraints: a constraint is a tag that a message has if it holds (CCM 2011, PCM 2014)."""
