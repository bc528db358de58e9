"""Observers that report the actions of test runners. They run in the project's own Python, whatever its version."""
