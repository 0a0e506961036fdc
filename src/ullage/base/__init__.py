"""The foundation of all other packages: errors, options, units, files, processes, the memory counts of the driver."""
