"""What everything else is built on: errors, units, files, processes, the driver's view of the GPUs."""
