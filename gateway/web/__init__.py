"""Web page for people: inbox, episodes, plans and projects."""
