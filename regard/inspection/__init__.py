"""Seeing a model: what every head of every layer looks at, as files that open anywhere."""
