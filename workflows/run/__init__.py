"""Kernel shared by all runs: messages, questions, reporting, activities and the life cycle."""
