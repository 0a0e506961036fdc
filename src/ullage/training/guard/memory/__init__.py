"""Running out of memory: errors that mean it, what frees memory, and single operations run again."""
