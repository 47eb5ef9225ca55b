"""Live values on pages: one feed thread, and consumers that hand on what it says."""
