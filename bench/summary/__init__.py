"""All benchmarks as one: their sizes, the bars of the issues, one table of figures beside bars, and growth curves."""
