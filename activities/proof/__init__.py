"""Proof of success: the definition of done, run outside the working tree."""
