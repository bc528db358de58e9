"""Plans as graphs: the document, its rules, its scheduler. Pure: no I/O, no clock."""
