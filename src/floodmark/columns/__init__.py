"""Computed columns: columns whose values a function computes, stored next to the records."""
