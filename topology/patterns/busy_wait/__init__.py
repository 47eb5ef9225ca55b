"""Busy wait: messages go round one delay queue until a header says that they are due."""
