"""What works here."""

import json
from typing import Any

from . import _native


class Report(dict[str, Any]):
    """What this kernel and these privileges allow, as `cowslip doctor --json` says it; printed as a table."""

    def __repr__(self) -> str:
        rows = [(it["name"], it["answer"], it.get("fix") or it.get("detail") or "") for it in self["capabilities"]]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{name:{widths[0]}}  {answer:{widths[1]}}  {rest}".rstrip() for name, answer, rest in rows]
        return "\n".join([self["verdict"]["sentence"], "", *lines])

    __str__ = __repr__


def doctor() -> Report:
    """Tries out what Cowslip builds on; a fraction of a second. The commands that provide the rest are in it."""
    return Report(json.loads(_native.doctor_json()))
