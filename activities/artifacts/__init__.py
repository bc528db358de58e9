"""Content-addressed artifact store on the workspace's host."""
