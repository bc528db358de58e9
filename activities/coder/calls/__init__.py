"""Calls of tools: validated, journaled, made once, their results bounded and stored."""
