"""Functions over ranges of records: computed columns, their checkpoints, and what is left to compute."""
