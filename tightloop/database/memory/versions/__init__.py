"""One module per revision, named after it and applied in name order."""
