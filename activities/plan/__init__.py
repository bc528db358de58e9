"""Plans: opening and revising them, running one step by its capability, taking one back."""
