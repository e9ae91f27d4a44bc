"""The timeline: a dataset's live rows in event-time order. Merging late rows rewrites row groups, not whole files."""
