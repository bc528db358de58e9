"""Project loop activities."""
