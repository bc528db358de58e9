"""Coding agents that are driven by their command line or by the Agent Client Protocol."""
