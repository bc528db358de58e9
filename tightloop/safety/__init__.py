"""Safety rules for commands, code and changes, and the removal of secrets and personal data from text."""
