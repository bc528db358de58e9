"""Runs tests in the Python of the project, whichever that is: on a tree as it is, and with single changes to it."""
