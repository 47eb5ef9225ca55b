"""What is wrong with a vhost: numbered rules on a snapshot, each finding with its remedy.

Rules named F read definitions, rules named L the numbers of queues too. Left for later, because a
snapshot does not show it: per-message TTLs in one queue, more than 32 messages in flight, delivery
modes, a missing permission on a dead-letter exchange, feature flags, clients that copy x-death,
several applications behind one set of levels, and a default queue type that meets a declare
without one.
"""
