"""The nightly figures, computed by Spark: a program of its own, imported by nobody."""
