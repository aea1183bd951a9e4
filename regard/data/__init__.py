"""Text without a model: files and corpora, sub-words, examples on disk, and which of them go together.

Tasks, training and recipes come in; nothing here knows what is learnt. Begin with `batching`: a batch is what all of it
is for.
"""
