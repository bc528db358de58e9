"""Project memory, stored in its own SQLite file or in the ledger's PostgreSQL database.

Its migrations are separate from the ledger's, so that a damaged memory does not affect the ledger.
Data that the ledger already contains is not duplicated:

| in the memory of an agent | here |
|---|---|
| tasks | `workflows` of the ledger |
| iterations | `checkpoints` of the ledger; each refers to plan, report, checks and reflection as artifacts |
| metrics | `metrics`, `workflows` and `spending` of the ledger |
| failures | `memory_failures`, with `memory_uses` for their solutions |
| patterns | `memory_patterns`; usage count and success rate are those of their `memory_uses` |
| facts | `memory_facts` |
"""
