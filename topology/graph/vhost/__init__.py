"""A whole vhost as a diagram: a card for each topology."""
