"""The messages between planner and executor, and their template."""
