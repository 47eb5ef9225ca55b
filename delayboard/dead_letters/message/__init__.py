"""One dead letter as a person reads it: content, history, path."""
