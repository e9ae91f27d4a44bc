"""Which rows belong to keys: units of work, how their rows are found, and chunks to be called with."""
