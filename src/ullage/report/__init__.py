"""Reports, and the code that draws them in a terminal or as an HTML page. This code does not depend on how the figures
were computed.
"""
