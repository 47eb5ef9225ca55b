"""Busy wait: messages pass one delay queue repeatedly until a header says that they are due."""
