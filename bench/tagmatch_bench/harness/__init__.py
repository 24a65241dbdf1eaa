"""What measures: workloads, timing, load, right answers, and results in one form with what writes them."""
