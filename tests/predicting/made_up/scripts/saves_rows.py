"""Save a data set of sentence pairs with labels, as real data: folder, rows, words per sentence."""

import sys

from datasets import ClassLabel, Dataset, Features, Value

folder, rows, words = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sentence = " ".join(["the"] * words)
features = Features({"sentence1": Value("string"), "sentence2": Value("string"), "label": ClassLabel(num_classes=3)})
columns = {"sentence1": [sentence] * rows, "sentence2": [sentence] * rows, "label": [n % 3 for n in range(rows)]}
Dataset.from_dict(columns, features=features).save_to_disk(folder)
