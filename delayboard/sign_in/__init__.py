"""Sign-in: its limit of attempts, locked accounts, sessions, the time zone of a person."""
