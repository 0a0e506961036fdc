"""`@pytest.mark.gpu_memory`: limits on the memory of a test, on an emulated or a real GPU."""
