"""Modules that all other packages use: errors, options, units, files, processes, and the driver's memory counts."""
