"""The web page: inbox, episodes, plans and projects for people, on the ledger and the client."""
