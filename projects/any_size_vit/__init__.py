"""Turn a pretrained ViT into one that takes any image size, and compare the ways to do it."""
