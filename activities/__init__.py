"""Side effects, in one package per capability with activity definitions, interfaces and adapters.

Workflows may import a package's `activity.py` and `port.py`. Only `worker` chooses the adapters.
"""
