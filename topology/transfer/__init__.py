"""Moving messages between queues without losing one."""
