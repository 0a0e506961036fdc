"""Where others' programs meet ullage: training loops, pytest, notebooks. Import the module you need."""
