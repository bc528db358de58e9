"""Proving success: the definition of done, run apart from the working tree."""
