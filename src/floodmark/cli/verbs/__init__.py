"""The verbs of the command line, one module each. Heavy libraries are imported when a verb runs, not before."""
