"""Pages about brokers and topologies: guard, parse, one domain call, render."""
