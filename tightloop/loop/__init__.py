"""The project loop: inspect, plan, dispatch, verify, record."""
