"""Pages about one topology and the list of all."""
