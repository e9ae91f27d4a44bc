"""What a query means, and so how it can be refreshed."""
