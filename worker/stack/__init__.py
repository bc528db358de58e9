"""What `up` starts beside the workers: the Temporal server, the doors, and who keeps them alive."""
