"""The server part of tightloop; `tightloop up` and `tightloop worker run` start it."""
