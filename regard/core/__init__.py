"""The mathematics: attention, positions, layers, losses. Imports torch and the standard library only."""
