"""The ledger of this host beside the workers: brought to other databases, and made again from histories."""
