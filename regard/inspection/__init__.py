"""Seeing a model: what every head of every layer looks at, as tensors, figures, and files that open anywhere.

It finds attention by type in any model. Adaptation, tasks, studies and the explorer come in. Begin with `taps`, of
which all else is built.
"""
