"""Reports, and the code that draws them in a terminal or as an HTML page."""
