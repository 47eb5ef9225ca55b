"""Moving a whole queue without parking its messages."""
