"""The web page: inbox, episodes, plans and projects."""
