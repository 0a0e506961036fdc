"""Changes to a training run that save memory and need no edit of the script. Each change has its own file."""
