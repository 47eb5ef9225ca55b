"""Moving waiting messages to another topology, each with what is left of its delay."""
