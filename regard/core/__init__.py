"""The mathematics: attention, positions, layers, losses, what a decoder remembers.

It imports torch, the standard library and `regard.checks`, and can be read, and used, alone; every other room but
`data` and `evaluation` may come in. Kernels are installed from outside (`regard.native.lend`). Begin with `attention`,
the paper beside it.
"""
