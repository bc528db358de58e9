"""Reads the code blocks of a page and follows them as a newcomer would."""
