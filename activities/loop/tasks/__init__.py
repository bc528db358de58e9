"""The tasks of a project's plan: who writes them, and what became of them."""
