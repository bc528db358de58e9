"""Who may use a door: host names, origins, sign-in, bearer tokens. All doors share it."""
