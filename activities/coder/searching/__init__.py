"""Searching the files of a tree."""
