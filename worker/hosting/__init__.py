"""Workers on their host: accepted work, start-up requirements, and other processes."""
