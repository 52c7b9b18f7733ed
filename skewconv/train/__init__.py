"""Training: data, augmentation, and what is built on them."""
