"""Proof of success: runs the definition of done outside the working tree."""
