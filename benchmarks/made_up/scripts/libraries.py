"""timm, sentence-transformers, processors, a pipeline of datasets: what they load is not here."""

import datasets
import timm
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoProcessor

vision = timm.create_model("resnet18", pretrained=True, num_classes=10).cuda()
processor = AutoImageProcessor.from_pretrained("google/vit-base-patch16-224")
AutoProcessor.from_pretrained("openai/clip-vit-base-patch32")
classifier = AutoModelForImageClassification.from_pretrained("google/vit-base-patch16-224").cuda()
sentences = SentenceTransformer("google-bert/bert-base-uncased", device="cuda")
pictures = datasets.load_dataset("someone/pictures", split="train[:50%]")
streamed = datasets.load_dataset("someone/pictures", split="train", streaming=True)
assert next(iter(streamed))["image"].size == (224, 224)
assert pictures.features["label"].num_classes == 4
assert sentences.encode("the the").shape == (768,)
optimizer = torch.optim.SGD([*vision.parameters(), *classifier.parameters()], 0.1)
for row in pictures:
    pixels = processor(row["image"], return_tensors="pt").pixel_values.cuda()
    label = torch.tensor([row["label"]], device="cuda")
    loss = torch.nn.functional.cross_entropy(vision(pixels), label) + classifier(pixel_values=pixels, labels=label).loss
    loss.backward()
    optimizer.step()
