"""A recipe says everything about a run: its sections, how they are read, and from there to a model directory.

`recipe` is what may be written, `train` what then happens, `shipped/` the recipes that come along. Begin with a file of
`shipped/`.
"""
