"""The operations: guard, parse, one domain call, serialize."""
