"""HTTP API: reads the ledger, and controls runs through the client."""
