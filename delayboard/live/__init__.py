"""Live values on pages: one feed thread, and consumers that send its values."""
