"""The atlas of a model's heads as one self-contained HTML page: everything is inside, and nothing is fetched."""

import json
import re
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

from regard.inspection.page import policy
from regard.inspection.roles import ABOUT


def atlas_page(atlas: Mapping[str, Any]) -> str:
    """An HTML document of what `regard.studies.atlas.make_atlas` has found; style, script and data are inside.

    >>> found = {"format": 1, "model": "<b>", "sentences": 1, "tokens": 3, "bleu": 0.0, "loss": 1.0, "heads": [],
    ...          "redundant": [], "pruning": None, "aer": None}
    >>> "<title>The heads of &lt;b&gt;</title>" in atlas_page(found)
    True
    """
    # In JSON "<" occurs only within strings; written as an escape, no token can close the script element.
    data = json.dumps({**atlas, "about": ABOUT}, separators=(",", ":")).replace("<", "\\u003c")
    template = resources.files("regard.inspection").joinpath("atlas.html").read_text("utf-8")
    slots = {"policy": policy(template), "title": escape(f"The heads of {atlas['model']}"), "data": data}
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: slots[slot[1]], template)  # one pass: a name names no slot
