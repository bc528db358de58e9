"""Frees what nobody needs any more."""
