"""What happened to messages: recorded, counted, and drawn."""
