"""Pages about replays and their drafts."""
