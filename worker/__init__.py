"""Composition root: builds adapters from the settings, and each role's workers from the adapters."""
