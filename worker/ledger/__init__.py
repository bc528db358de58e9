"""This host's ledger: forwarding to a central database, rebuilding from histories, and daily digests."""
