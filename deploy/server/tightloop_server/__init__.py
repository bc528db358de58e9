"""Server part of tightloop, started by `tightloop up` and `tightloop worker run`."""
