"""Passes requests on to a service behind it."""
