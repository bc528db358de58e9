"""Commands about this host: server, workers, settings, keys."""
