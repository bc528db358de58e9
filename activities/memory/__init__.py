"""Memory of failures, their solutions and facts about a project."""
