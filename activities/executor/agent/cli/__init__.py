"""Coding agents that are driven by their command line."""
