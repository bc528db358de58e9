"""Steps that start workflows."""
