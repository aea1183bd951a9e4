"""Evaluation: how good an output is, as a number with its provenance. Works on texts and arrays; imports no sibling."""
