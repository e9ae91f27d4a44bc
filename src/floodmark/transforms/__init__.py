"""Steps: compute datasets from other datasets, for changed keys only."""
