"""The half that whoever changes the rules neither writes nor reads; it is for the figures."""
