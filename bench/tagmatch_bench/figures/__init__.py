"""The tables and figures of the TagMatch paper, measured anew beside its own numbers, and some more."""
