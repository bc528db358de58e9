"""Durable loops of coding agents on Temporal: plan, hand off, execute, verify, track and reflect."""
