"""One report, many ways to draw it. Nothing here knows what was computed."""
