"""Execution of the checks of the definition of done."""
