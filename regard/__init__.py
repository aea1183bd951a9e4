"""The Transformer, whole: train it on your own text, use it, and see every layer and head."""
