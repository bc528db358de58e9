"""Fixes that a toolchain offers for failing checks."""
