"""The tables and figures of the TagMatch paper, measured again and compared with its own numbers, and some more."""
