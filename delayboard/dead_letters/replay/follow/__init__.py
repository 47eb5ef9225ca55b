"""What becomes of replayed messages: arrivals, deaths, and who observes them."""
