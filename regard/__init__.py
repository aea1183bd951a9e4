"""The Transformer, whole: train it on your own text, use it, and see every layer and head."""

from regard.inspection.taps import edit, record

__all__ = ["__version__", "edit", "record"]
__version__ = "0.1.0.dev0"
