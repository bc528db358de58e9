"""One module a revision, in order of their names; a module's name is its revision."""
