"""Side effects: one package per capability, each with activity definitions, interfaces and adapters.

Workflows may import `activity.py` and `port.py` of a package; only `worker` chooses the adapters beside them.
"""
