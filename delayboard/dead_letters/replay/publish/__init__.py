"""What is published of a message: its content, edited headers and stamps, at a rate."""
