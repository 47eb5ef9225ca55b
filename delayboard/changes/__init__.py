"""Changes of waiting messages: cancel, reschedule, deliver now."""
