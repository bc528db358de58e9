"""The doing: one package per capability, each with its activity definitions, its ports and its adapters.

`activity.py` and `port.py` of a package are what workflows may see; the adapters beside them are
chosen by `worker` alone.
"""
