"""Hand everything to a trainer that is installed."""

import sys

sys.path.insert(0, sys.argv[1])
import a_trainer

a_trainer.train()
