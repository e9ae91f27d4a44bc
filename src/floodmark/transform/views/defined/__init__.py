"""What users declare as a view, and how the chain has it."""
