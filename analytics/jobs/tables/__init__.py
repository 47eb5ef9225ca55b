"""Spark: the events of a day -> the rows of each table of results."""
