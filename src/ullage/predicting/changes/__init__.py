"""Changes to a training run, each made from outside: the script itself is not edited. One file a change."""
