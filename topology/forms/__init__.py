"""What operators type about brokers and topologies."""
