"""Charts: plain values first, then a Plotly figure of them. Colours are the page's."""
