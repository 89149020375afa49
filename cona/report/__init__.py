"""One HTML file that shows a tier: claims, figures, tables, decisions, timelines, costs, sources.

What was computed stays where it is: tables and figures are read from their files. `page` writes.
"""
