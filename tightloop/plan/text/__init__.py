"""Text forms of a plan. YAML, JSON and DSL can be read and written; Mermaid can only be written."""
