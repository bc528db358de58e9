"""The door of a sandbox: its only way to the network, and only to the hosts that are listed."""
