"""A Transformer's inference in C, compiled on the machine that runs it: for searches, and as exact as they need it."""

from regard.native.build import UnsupportedError
from regard.native.compiler import UnavailableError
from regard.native.model import Native, Shortlists

__all__ = ["Native", "Shortlists", "UnavailableError", "UnsupportedError"]
