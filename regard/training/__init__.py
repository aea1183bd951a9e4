"""From batches to weights: the loop, its optimisers and schedules, threads and processes, checkpoints.

A model, an objective and a collate are arguments; none is imported. Recipes and experiments come in, and tasks for
objectives. Begin with `loop`.
"""
