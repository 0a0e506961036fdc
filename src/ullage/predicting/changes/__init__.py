"""Changes to a training run that need no edit of the script. Each change has its own file."""
