"""The stages of the pipeline (§3, Figure 1): what each does, in which order, and two executors, inline and threaded."""
