"""Planners and reflectors, with their interfaces and adapters."""
