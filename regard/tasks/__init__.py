"""What a model is for: a file for each task, from raw text to what a model learns from, and from a model to answers.

A task knows no model by name: one is an argument. `translator` and `generator` are what a person holds. Recipes,
`regard.api` and what stands on them come in. Begin with `task`, then `translate`.
"""
