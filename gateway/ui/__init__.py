"""The Temporal Web UI behind a sign-in, with the codec that shows it what is sealed."""
