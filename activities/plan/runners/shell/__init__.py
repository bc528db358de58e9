"""Shell commands and quoting."""
