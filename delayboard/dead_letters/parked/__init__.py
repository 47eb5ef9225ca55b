"""Parked messages: the one writer, states, groups, retention."""
