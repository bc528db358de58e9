"""Planners and reflectors: interfaces and adapters."""
