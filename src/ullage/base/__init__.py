"""Modules that the whole package uses: errors, options, units, files, processes and the driver's memory counts."""
