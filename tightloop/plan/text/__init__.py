"""Text forms of a plan: YAML, JSON and DSL, read and written; Mermaid, written only."""
