"""The delays of a vhost, whoever declared them: delay queues, entries, exits, chains."""
