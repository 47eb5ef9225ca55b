"""Mappings: what the records of foreign logs mean as events. Pure; the formats lie in shipped/."""
