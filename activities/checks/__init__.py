"""Runs the checks in the definition of done."""
