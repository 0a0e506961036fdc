"""Changes to a training run that are applied without editing the script. Each change has its own file."""
