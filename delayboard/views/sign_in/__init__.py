"""Pages of sign-in: password, provider, link, sessions, roles of groups, permissions."""
