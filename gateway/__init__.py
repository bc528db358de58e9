"""Servers through which other programs use tightloop. Each stands alone: they never import each other."""
