"""Data that a model can learn from: generated tasks, and dates in many languages."""
