"""Entries that whoever changes the rules does not read."""
