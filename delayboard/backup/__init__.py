"""Backup and restore of a site: database, keys, event log and Parquet."""
