"""Test runner for the project's own Python, of any version: runs tests on a tree, and with mutants of it."""
