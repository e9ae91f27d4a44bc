"""What a step's function is, calling it, and what is made of its results and errors."""
