"""The ledger of a dataset: schema, append, slice index, reads by offset, verify."""
