"""Many ranks' snapshots, explained: time, memory, and whether it is linear."""
