"""Queues that hold dead letters: proposed, confirmed, peeked."""
