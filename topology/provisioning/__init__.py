"""Steps from definitions to a broker and back: plan, apply, verify, teardown."""
