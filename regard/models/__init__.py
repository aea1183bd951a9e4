"""The family: one file for each member, built from `regard.core`."""
