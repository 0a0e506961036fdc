"""Why did a recorded run run out of memory, and which changes prevent the error?"""

import ullage

explanation = ullage.explain("tests/snapshots/variable_length_oom.pickle.gz")
print(explanation.headline)
print(explanation.sentence)
for remedy in explanation.remedies[:3]:
    print(f"{remedy.short_name}: {'fits' if remedy.fits else 'does not fit'}")
