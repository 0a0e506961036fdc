"""Search for the largest value of a script's option with which the script fits. Also search for changes that allow a
larger value without editing the script.
"""
