"""The dry run: where each message goes, and whether it arrives there."""
