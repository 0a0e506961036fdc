"""Explain why a recorded run ran out of memory, and list the settings with which it fits."""

import ullage

explanation = ullage.explain("tests/snapshots/variable_length_oom.pickle.gz")
print(explanation.cause)
print(explanation.sentence)
for remedy in explanation.remedies[:3]:
    print(f"{remedy.short_name}: {'fits' if remedy.fits else 'does not fit'}")
