"""A model and a text, studied: every figure of `evaluate`, the atlas of heads, maps in a file, pruning curves.

Rooms below know how to measure; here it is said of what, and written down. Only the command comes in. Begin with
`study`.
"""
