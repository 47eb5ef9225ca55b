"""What should exist and what does exist in a broker, and who may touch it."""
