"""References and expressions in the texts of a plan."""
