"""Coding agents driven by their command line or by the Agent Client Protocol."""
