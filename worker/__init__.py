"""Composition root: builds adapters from settings, and workers by role from adapters."""
