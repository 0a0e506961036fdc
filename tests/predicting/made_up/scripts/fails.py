"""Ask for something that is not here."""

import sys

match sys.argv[1]:
    case "model":
        from transformers import AutoModelForCausalLM

        AutoModelForCausalLM.from_pretrained("someone/unknown")
    case "tokenizer":
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained("someone/unknown")
    case "file":
        import torch

        torch.load("missing.pt")
    case "pictures":
        import torchvision

        torchvision.datasets.ImageFolder("missing")
    case "flowers":
        import torchvision

        torchvision.datasets.Flowers102("missing")
