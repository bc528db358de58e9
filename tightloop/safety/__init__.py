"""Safety rules for commands, code and changes, and removal of secrets and personal data from text."""
