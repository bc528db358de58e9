"""Coding agents driven through their command line or the Agent Client Protocol."""
