"""`@pytest.mark.gpu_memory`: limit the memory of a test, on an emulated or a real GPU."""
