"""Code that a fresh `python -I` runs: standard library only, nothing of untail."""
