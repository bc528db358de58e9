"""The codec server: Temporal's UI and CLI read and write encrypted payloads through it."""
