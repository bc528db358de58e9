"""Memory of failures and their solutions: models and ranking."""
