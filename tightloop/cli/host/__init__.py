"""Commands for this host: server, workers, settings and keys."""
