"""Test runner for the project's own Python, whatever its version.

It runs tests on a tree and on mutants of the tree.
"""
