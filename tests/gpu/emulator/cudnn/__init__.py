"""cuDNN's own plans: what is asked, what is kept, the process that answers, and NVIDIA's library itself."""
