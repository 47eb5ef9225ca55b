"""How long stores keep their rows and files, and the one engine that deletes the older ones."""
