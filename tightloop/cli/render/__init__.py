"""What people see: one module for each kind of thing."""
