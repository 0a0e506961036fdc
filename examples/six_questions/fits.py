"""Will this script fit, and what takes the memory?"""

import ullage

prediction = ullage.predict("examples/train_gpt2.py", ["--batch-size", "4"], gpu="RTX 3060")
print(prediction.verdict, prediction.peak_allocated_bytes, prediction.headroom_bytes > 0)
for role, size in sorted(prediction.roles.items(), key=lambda row: -row[1])[:3]:
    print(f"{role}: {size:,} bytes")
