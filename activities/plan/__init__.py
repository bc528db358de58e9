"""Opening and revising plans, and running and compensating their steps."""
