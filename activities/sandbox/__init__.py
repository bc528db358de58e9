"""Sandboxes for commands and agents."""
