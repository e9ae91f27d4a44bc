"""The Spark data source "floodmark": Spark jobs read and write datasets, in batches and as streams."""
