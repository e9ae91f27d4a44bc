"""Sources that write rows into the lake: files, functions and database tables."""
