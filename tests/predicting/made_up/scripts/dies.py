"""Load a model that is not here, and be killed, or wait to be."""

import os
import signal
import sys
import time

from transformers import AutoModelForCausalLM

AutoModelForCausalLM.from_pretrained("someone/llama")
print("loaded", flush=True)
if sys.argv[1] == "itself":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
