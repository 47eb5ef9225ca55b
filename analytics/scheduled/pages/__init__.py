"""What the pages and exports of scheduled messages show."""
