"""Files, links and sessions that sign people in to web pages."""
