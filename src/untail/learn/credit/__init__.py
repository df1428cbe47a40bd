"""What tokens weigh that copies share. One file each; importing this package registers them all."""

from untail.learn.credit import none, once, progressive, weights
from untail.learn.credit.base import CREDITS, Credit

__all__ = ["CREDITS", "Credit", "none", "once", "progressive", "weights"]
