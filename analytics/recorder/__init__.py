"""The recorder: taps and facts become events, in the log first and then in the index."""
