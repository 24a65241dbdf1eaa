"""Online: queries to keys, in the paper's stages: preprocess, subset match, key lookup, merge (§3, Figure 1)."""
