"""Training: schedules, the loop, data parallelism. A model is an argument; none is imported."""
