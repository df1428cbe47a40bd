"""How tokens of older weights are corrected. One file each; importing this package registers them all."""

from untail.learn.importance import on_policy, pois, pois_segment, segment, tis
from untail.learn.importance.base import IMPORTANCES, Importance

__all__ = ["IMPORTANCES", "Importance", "on_policy", "pois", "pois_segment", "segment", "tis"]
