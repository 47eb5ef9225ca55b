"""Pages about one broker: connection, queues, discovered topologies, diagram, routes."""
