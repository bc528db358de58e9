"""Access control for all servers: host names, origins, sign-in, bearer tokens and roles."""
