"""The HTTP API. It reads the ledger and controls runs through the client."""
