"""A broker of its own to try Delayboard on, and what happens on it."""
