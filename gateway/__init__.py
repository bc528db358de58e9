"""Doors to tightloop for other programs. Each stands alone: they never import each other."""
