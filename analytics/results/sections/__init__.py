"""The tables of a report: what its charts draw, its page lists and its CSV files hold."""
