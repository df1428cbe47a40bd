"""untail: reinforcement-learning post-training for reasoning LLMs, without the long tail.

Importing the package costs nothing: it brings in neither torch nor any other heavy library.
"""

__version__ = "0.1.0"
