"""The patterns, one folder for each way to delay messages; `table.py` lists them all."""
