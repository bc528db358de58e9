"""Checks of the definition of done."""
