"""Views: stored results of SQL queries, updated incrementally from what changed."""
