"""The switch rules of CONA, as in the paper and improved; `baselines/cona.py` wraps them.

What its rivals need too is here as well: `narrow` holds a layout or a batch size fixed, `patience`
says how long a policy waits between two decisions.

Source: method.md 3.
"""

from cona.controller.improved import ImprovedRule, RuleSwitches
from cona.controller.paper import PaperRule

__all__ = ["ImprovedRule", "PaperRule", "RuleSwitches"]
