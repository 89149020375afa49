"""The switch rules of CONA, as in the paper and improved; `baselines/cona.py` wraps them.

Source: method.md 3.
"""

from cona.controller.improved import ImprovedRule, RuleSwitches
from cona.controller.paper import PaperRule

__all__ = ["ImprovedRule", "PaperRule", "RuleSwitches"]
