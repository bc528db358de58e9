"""Runs the checks of the definition of done."""
