"""The driver: it runs the phases of any GAN and knows nothing else about it."""
