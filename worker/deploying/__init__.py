"""Worker Deployments: which build the workers are, and what has to hold before new workflows go to it."""
