"""Who may use the gateway, and what was asked already."""
