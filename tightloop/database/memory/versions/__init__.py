"""Migrations, with one module per revision. Each is named after its revision, and they are applied in name order."""
