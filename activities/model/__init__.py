"""Asking a language model for a JSON object: shared by the planner and the reflector."""
