"""Agent S, asked where the chat box is; it never types, clicks or runs anything."""
