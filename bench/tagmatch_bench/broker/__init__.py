"""A whole broker around a matcher, as PCM's Figure 5 has it: what its Figure 10 is measured on.

A. Margara, G. Cugola, "High-Performance Publish-Subscribe Matching Using Parallel Hardware", IEEE TPDS 25(1), 2014, §4.
"""
