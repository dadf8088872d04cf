"""Engines beside the embedded one; each in a package that alone imports what it needs."""
