"""Ledger of this host: forwarding to a central database, rebuild from histories, and daily digests."""
