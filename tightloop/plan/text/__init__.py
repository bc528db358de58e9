"""The plan as text: YAML, JSON and the DSL read and written, Mermaid drawn."""
