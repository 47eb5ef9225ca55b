"""What the store of parked messages reports, in a module that every process can import quickly."""

from __future__ import annotations

from django.dispatch import Signal

# Parked messages that name a replay, sent in the transaction that writes them, with `broker`,
# `returned` (pairs of the replay header's value and a ReturnedMessage) and `at`.
replayed_messages_returned = Signal()
