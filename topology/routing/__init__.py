"""What a broker would do with a message, worked out on definitions without one."""
