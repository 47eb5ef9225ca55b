"""The walk against real brokers: random vhosts, random publishes, where they end and when."""
