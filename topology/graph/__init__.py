"""Diagrams of definitions: nodes and edges, layout, and SVG."""
