"""The composition root: settings become adapters, adapters become workers by role."""
