"""The policy: a vision-language model, its encoder, image corruption, and forwards that share a prompt's work."""
