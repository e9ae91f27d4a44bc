"""Provenance: traces records back to their sources and forward to derived records, and replays derived data."""
