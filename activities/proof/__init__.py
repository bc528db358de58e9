"""Proves success by running the definition of done outside the working tree."""
