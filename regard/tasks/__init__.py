"""What a model is for: a file for each task, from raw text to what a model learns from, and from a model to answers.

A task knows no model by name: one is an argument. Begin with `translate`.
"""
