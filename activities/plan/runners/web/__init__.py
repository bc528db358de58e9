"""Requests to the web."""
