"""Workers on their host: the work they accept, start-up requirements, and other processes."""
