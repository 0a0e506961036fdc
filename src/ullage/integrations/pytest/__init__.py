"""`@pytest.mark.gpu_memory`: limits on the memory of a test, on an emulated GPU or a real one."""
