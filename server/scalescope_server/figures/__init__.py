"""Figures: what the store read, as Plotly figures in plain data. Pure functions; nothing here imports Plotly.

palette and chart hold what all share, walls and grid prepare, scale, series, layers and layer draw one chart
each. The same figures serve the pages, reports and notebooks.
"""
