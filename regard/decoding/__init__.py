"""From a model's next-token scores to sequences: searches, samples, constraints, ensembles.

They speak a protocol (start, step, reorder) with whatever model, engine or runtime, and import none. The native engine
and the tasks come in. Begin with `protocol`, then `beam`.
"""
