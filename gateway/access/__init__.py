"""Access control shared by all servers: host names, origins, sign-in, bearer tokens and roles."""
