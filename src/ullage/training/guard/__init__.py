"""Training that goes on when memory runs out, with the same gradients: `ullage.Guard`."""
