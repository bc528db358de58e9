"""The order of things: deterministic Temporal workflows that ask pure rules what comes next."""
