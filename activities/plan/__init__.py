"""Plans: opening, revising, running and compensating steps."""
