"""The commands about plans."""
