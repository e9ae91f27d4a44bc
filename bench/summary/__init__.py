"""The summary of all benchmarks: their sizes, the bars of the issues, the table of results, and growth curves."""
