"""Rules about what must not happen, and removal of secrets and personal data from text."""
