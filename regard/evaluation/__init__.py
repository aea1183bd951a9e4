"""How good an output is, as a number with its provenance.

It works on texts and arrays and knows no model. Tasks, studies and experiments come in. Begin with `translation`.
"""
