"""What is kept for how long, and the deleting of what is past that."""
