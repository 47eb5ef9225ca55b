"""Pictures of definitions: what is drawn, where it stands, and the SVG of it."""
