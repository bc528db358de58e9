"""Plans as graphs: the document, its rules and its scheduler.

This package is pure: it performs no I/O and does not read the clock.
"""
