"""Train the shipped segmentor with the tokens of CLIP."""
