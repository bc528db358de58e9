"""Rules about code, before anything of it is run."""
