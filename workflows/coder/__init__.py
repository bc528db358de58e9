"""The built-in coder as a workflow."""
