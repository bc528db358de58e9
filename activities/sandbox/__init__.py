"""Where code that nobody has read yet is run."""
