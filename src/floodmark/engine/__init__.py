"""Runs tasks on Spark, in worker processes or in threads: sessions, retries and progress. Knows nothing about datasets.

Importing a module of this package starts no JVM. A session starts one on first use.
"""
