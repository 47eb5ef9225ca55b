"""Pages about what happened: scheduled messages, reports, nightly runs."""
