"""Benchmarks; each is a command of `tagmatch-bench`."""

from tagmatch.model.kernels.interpreted import compile_at_once

compile_at_once()  # the warm-up is smaller than the timed work
