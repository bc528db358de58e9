"""Plan, hand off, execute, verify, track, reflect: durable loops of coding agents on Temporal."""
