"""Template filters and tags of the site."""
