"""Gates: automatic checks and people."""
