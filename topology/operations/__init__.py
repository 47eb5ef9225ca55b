"""What an operator does with topologies and brokers: each operation is one call."""
