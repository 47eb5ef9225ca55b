"""What all tables share: errors as sentences, optional writes, slugs, pages of rows."""
