"""The desktops that can be driven."""
