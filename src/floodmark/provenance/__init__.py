"""Where records came from and what came of them, row by row; and derived data computed again and compared."""
