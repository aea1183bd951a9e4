"""A recipe says everything about a run: its sections, how they are read, and from there to a model directory.

`recipe` is what may be written, `reading` how, `train` what then happens, `shipped/` the recipes that come along. The
command, studies and experiments come in; `regard.api` reads the recipe of a directory that an older regard has left.
Begin with `shipped/quickstart.yaml`, then `recipe`.
"""
