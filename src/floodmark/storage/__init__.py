"""Objects in a folder or bucket: stores, documents, Parquet files, sorted runs, and the deletion of unused objects."""
