"""Remembers failures, what solved them, and facts about a project."""
