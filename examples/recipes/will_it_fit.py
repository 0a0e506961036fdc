"""Predict whether a script fits on a GPU, and what its memory is used for."""

import ullage

prediction = ullage.predict("examples/train_gpt2.py", ["--batch-size", "4"], gpu="RTX 3060")
print(prediction.verdict, f"{prediction.peak_allocated_bytes:,} bytes allocated at the peak")
for role, role_bytes in sorted(prediction.roles.items(), key=lambda row: -row[1])[:3]:
    print(f"{role}: {role_bytes:,} bytes")
