"""The timeline: a dataset's current rows in event-time order, late ones merged in at row-group cost."""
