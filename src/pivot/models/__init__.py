"""Vision-language models: loading, encoding, image corruption, and forward passes that share a prompt."""
