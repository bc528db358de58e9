"""The memory of projects, in a database file of its own, or in the PostgreSQL of the ledger.

Its tables have migrations of their own, apart from the ledger's: whatever is wrong with the memory, the ledger works.
What the ledger already holds is not stored twice:

| in the memory of an agent | here |
|---|---|
| tasks | `workflows` of the ledger |
| iterations | `checkpoints` of the ledger; each refers to plan, report, checks and reflection as artifacts |
| metrics | `metrics`, `workflows` and `days` of the ledger |
| failures | `memory_failures`, with `memory_uses` for what solved them |
| patterns | `memory_patterns`; usage count and success rate are those of their `memory_uses` |
| facts | `memory_facts` |
"""
