"""What of a run's peak is avoidable, as the run itself shows it; asked for by `Request.diagnose`."""
