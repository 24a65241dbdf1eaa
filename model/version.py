"""The version, in a module of its own so that every layer may import it."""

VERSION = "0.1.0"
