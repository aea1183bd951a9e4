"""Models made from models: smaller, faster, or fitted to another task."""
