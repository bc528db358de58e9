"""The HTTP API: reads the ledger, and starts and steers through the client."""
