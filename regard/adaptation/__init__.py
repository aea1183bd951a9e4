"""Models made from models: smaller, faster, or fitted to another task.

A change finds its way by the types of modules and never by a model's name, so it works on every family; a model
directory lists the changes of its model. Storage, conversion, studies and the explorer come in. Begin with `change`.
"""
