"""Users' functions: calling them, and what happens to rows and keys for which they fail."""
