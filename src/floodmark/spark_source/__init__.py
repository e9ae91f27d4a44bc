"""Spark's front door: datasets as a source and a sink of anybody's Spark job, by the name "floodmark"."""
