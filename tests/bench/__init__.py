"""Figures, as ratios within one run: `make bench`. Nothing here passes or fails.

A part is a module with a function `measure(folder)`, listed in `__main__.py`.
"""
