"""Pages that set up Delayboard or an account: password, alerts, redaction, retention, system."""
