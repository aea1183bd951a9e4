"""Decoding: from a model's next-token scores to sequences. Speaks a protocol; imports no model."""
